"""What is written is read back, in whatever slices; what was altered is found, and never read."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from mpitrain.checkpoints import slices
from mpitrain.checkpoints.manifest import FORMAT, MANIFEST, STATE, read_manifest
from mpitrain.checkpoints.packing import Holding, Packing
from mpitrain.checkpoints.reader import Reader, check
from mpitrain.checkpoints.slices import Slice
from mpitrain.checkpoints.writing import BackgroundWriter
from mpitrain.errors import InputError
from mpitrain.parameters.layout import aligned_zeros
from tests.checkpoints import making
from tests.checkpoints.making import LAYOUT, make, vectors

places = st.integers(0, LAYOUT.size // 16).map(lambda block: 16 * block)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("whole"))


def read(folder: Path, vector: str, low: int, high: int) -> np.ndarray:
    """Padded elements ``low`` to ``high`` of a vector; what was there before shows where nothing was read."""
    packing = Packing(LAYOUT)
    memory = np.zeros(high - low, np.float32)
    first, size = packing.packed(low), packing.packed(high) - packing.packed(low)
    holding = Holding(vector, LAYOUT.dtype, size, lambda: memory, first, packing, low)
    Reader(folder, read_manifest(folder)).fill(holding, memory)
    return memory


@settings(max_examples=50, deadline=None)
@given(st.sets(places, max_size=4), st.sets(places, min_size=2, max_size=4), st.sampled_from([64, 96, 2**26]))
def test_what_one_set_of_ranks_wrote_another_reads(
    tmp_path_factory: pytest.TempPathFactory, written: set[int], wanted: set[int], piece: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "PIECE", piece)
        patch.setattr("mpitrain.checkpoints.reader.PIECE", piece)
        borders = tuple(sorted({0, LAYOUT.size, *written}))
        folder = make(tmp_path_factory.mktemp("run"), borders=borders)
        check(folder)
        for name, vector in vectors(3).items():
            for low, high in zip(sorted(wanted), sorted(wanted)[1:], strict=False):
                assert np.array_equal(read(folder, name, low, high), vector[low:high])


def test_the_files_are_plain_safetensors_without_padding(whole: Path) -> None:
    held = [load_file(path) for path in sorted(whole.glob("slice-*"))]
    for name, vector in vectors(3).items():
        packed = np.concatenate([tensors[name] for tensors in held])
        assert np.array_equal(packed, np.concatenate([np.ravel(view) for view in LAYOUT.views(vector)]))
    assert load_file(whole / STATE)["state"].tolist() == [0, 1, 2, 3]


def test_ranks_that_hold_the_same_share_the_work() -> None:
    packing, vector = Packing(LAYOUT), vectors()["parameters"]
    holding = Holding("parameters", vector.dtype, packing.size, lambda: vector, packing=packing)
    parts = [Slice([(holding, *holding.part(index, 3))]).stretches[0] for index in range(3)]
    assert [part.start for part in parts] + [parts[-1].stop] == [0, *[part.stop for part in parts]]
    assert parts[-1].stop == packing.size
    assert max(p.stop - p.start for p in parts) - min(p.stop - p.start for p in parts) <= 1


def test_the_manifest_is_read_as_it_was_written(whole: Path) -> None:
    wanted = making.manifest()
    found = read_manifest(whole)
    assert found.totals.sums[2] == 120
    assert np.isnan(found.totals.sums[1])
    for name in ("sums", "dropped"):
        np.testing.assert_array_equal(getattr(found.totals, name), getattr(wanted.totals, name))
    assert replace(found, totals=wanted.totals, files={}) == wanted
    assert (found.step, found.place.settled, found.epoch) == (3, 110, 1.1)
    assert found.padded_layout() == LAYOUT
    assert found.vectors() == dict.fromkeys(vectors(), LAYOUT.parameter_count)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_altered_or_missing_byte_is_found_and_named(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(path.name for path in whole.iterdir())))
    content = (whole / name).read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    damage = data.draw(st.sampled_from(["flip", "cut", "add", "lose"]))
    if damage == "flip":
        content = content[:place] + bytes([content[place] ^ data.draw(st.integers(1, 255))]) + content[place + 1 :]
    elif damage == "cut":
        content = content[:place]
    elif damage == "add":
        content = content[:place] + b"\0" + content[place:]
    copy = tmp_path / whole.name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    (copy / name).unlink() if damage == "lose" else (copy / name).write_bytes(content)
    with pytest.raises(InputError) as refused:
        check(copy)
    assert str(copy) in str(refused.value)
    assert "manifest" in str(refused.value) or name in str(refused.value)


def test_a_newer_format_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpitrain.checkpoints.manifest.FORMAT", FORMAT + 1)
    folder = make(tmp_path)
    monkeypatch.setattr("mpitrain.checkpoints.manifest.FORMAT", FORMAT)
    with pytest.raises(InputError, match=rf"{folder} has format 2, and this mpitrain reads formats up to 1"):
        check(folder)


def test_a_slice_that_is_too_large_to_copy_streams_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vector = aligned_zeros(1000)
    vector[:] = np.arange(1000)
    written = []
    for piece in (2**20, 512):
        monkeypatch.setattr(slices, "PIECE", piece)
        monkeypatch.setattr("mpitrain.checkpoints.writing.PIECE", piece)
        writer, moved = BackgroundWriter(), []
        content = Slice([(Holding("v", vector.dtype, 1000, lambda: vector), 0, 1000)])
        writer.write(content, tmp_path / f"{piece}")
        writer.wait(lambda moved=moved: moved.append(1))
        result = writer.take()
        assert result is not None
        assert result.stored is not None
        assert writer.take() is None, "it is told once"
        written.append((result.stored.sha256, (tmp_path / f"{piece}").read_bytes()))
    assert written[0] == written[1]
    assert MANIFEST not in {path.name for path in tmp_path.iterdir()}


def test_what_is_copied_may_change_while_it_is_written(tmp_path: Path) -> None:
    vector = np.ones(10, np.float32)
    writer = BackgroundWriter()
    writer.write(Slice([(Holding("v", vector.dtype, 10, lambda: vector), 0, 10)]), tmp_path / "file")
    vector[:] = 7
    writer.wait(lambda: None)
    assert load_file(tmp_path / "file")["v"].tolist() == [1] * 10
