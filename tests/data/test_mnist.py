"""Data sets in memory: how they are split, where they are read from, and what is wrong with a bad one."""

from __future__ import annotations

import gzip
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpitrain.data import mnist, sources
from mpitrain.data.idx import format_idx, read_idx
from mpitrain.data.mnist import load
from mpitrain.data.sources import FILES, SAMPLE_FOLDER, cache_folder

ROOT = Path(__file__).parents[2]


def test_the_sample_is_whole_and_split_as_it_says() -> None:
    sample = load("mnist-sample")
    assert [len(part) for part in (sample.train, sample.validation, sample.test)] == [5500, 500, 1000]
    assert sample.train.images.shape == (5500, 28, 28)
    assert sample.num_classes == 10
    assert sample.name == "mnist-sample"
    labels = read_idx(SAMPLE_FOLDER / "train-labels-idx1-ubyte.gz")
    np.testing.assert_array_equal(sample.validation.labels, labels[:500])
    np.testing.assert_array_equal(sample.train.labels, labels[500:])
    for part in (sample.train, sample.validation, sample.test):
        assert np.bincount(part.labels).min() > len(part) / 20


def test_the_sample_names_its_source_and_licence() -> None:
    text = (SAMPLE_FOLDER / "README.md").read_text()
    for needed in (
        "Yann LeCun",
        "Corinna Cortes",
        "Christopher J.C. Burges",
        "CC BY-SA 3.0",
        "divisible by 10",
    ):
        assert needed in text


def test_a_sample_is_every_tenth_image_with_the_same_bytes_each_time(write, tmp_path) -> None:
    make_sample = runpy.run_path(str(ROOT / "scripts" / "make_sample.py"))["make_sample"]
    folder = write()
    checksums = [make_sample(folder, tmp_path / target) for target in ("a", "b")]
    assert checksums[0] == checksums[1]
    for name in FILES:
        made = tmp_path / "a" / f"{name}.gz"
        np.testing.assert_array_equal(read_idx(made), read_idx(folder / name)[::10])
        assert made.read_bytes() == (tmp_path / "b" / made.name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(f"{name}.gz" for name in FILES)


def test_a_damaged_sample_is_noticed(tmp_path, monkeypatch, sentence) -> None:
    folder = tmp_path / "sample"
    shutil.copytree(SAMPLE_FOLDER, folder)
    path = folder / "t10k-labels-idx1-ubyte.gz"
    labels = read_idx(path).copy()
    labels[5] += 1
    path.write_bytes(gzip.compress(format_idx(labels)))
    monkeypatch.setattr(mnist, "SAMPLE_FOLDER", folder)
    text = sentence(load, "mnist-sample")
    assert f"{path} is damaged, its SHA-256 is" in text
    assert "install mpitrain again" in text


def test_mnist_has_the_tf1_tutorials_split(write) -> None:
    train, test = (np.arange(n, dtype=np.uint32).view(np.uint8).reshape(n, 2, 2) for n in (60_000, 10_000))
    labels = [(np.arange(n) % 10).astype(np.uint8) for n in (60_000, 10_000)]
    data = load("mnist", write(train_images=train, train_labels=labels[0], t10k_images=test, t10k_labels=labels[1]))
    np.testing.assert_array_equal(data.validation.images, train[:5_000])
    np.testing.assert_array_equal(data.train.images, train[5_000:])
    np.testing.assert_array_equal(data.train.labels, labels[0][5_000:])
    np.testing.assert_array_equal(data.test.images, test)


def test_a_folder_like_it_may_have_other_sizes_and_classes(write) -> None:
    data = load(data_dir=write())
    assert data.name == "letters"
    assert [len(part) for part in (data.train, data.validation, data.test)] == [33, 3, 7]
    assert data.train.images.shape[1:] == (5, 3)
    assert data.num_classes == 4
    with pytest.raises(ValueError, match="read-only"):
        data.train.images[0] = 0


@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("packed", [False, True])
def test_the_files_may_be_spelled_and_packed_in_any_way(write, dotted, suffix, packed) -> None:
    folder = write()
    expected = load(data_dir=folder)
    for path in list(folder.iterdir()):
        content = path.read_bytes()
        path.unlink()
        name = path.name.replace("-idx", ".idx") if dotted else path.name
        (folder / (name + suffix)).write_bytes(gzip.compress(content) if packed else content)
    np.testing.assert_array_equal(load(data_dir=folder).train.images, expected.train.images)


def test_a_missing_folder_or_file_is_named(write, sentence, tmp_path) -> None:
    assert f"{tmp_path / 'absent'} does not exist" in sentence(load, "mnist", tmp_path / "absent")
    folder = write(train_labels=None, t10k_images=None)
    text = sentence(load, "mnist", folder)
    assert f"{folder} lacks train-labels-idx1-ubyte and t10k-images-idx3-ubyte" in text
    assert "t10k-labels" not in text
    assert "is no folder" in sentence(load, "mnist", folder / "train-images-idx3-ubyte")


def u8(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.uint8)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train_labels": u8(35)}, "holds 36 images but"),
        ({"t10k_images": u8(8, 5, 3)}, "holds 8 images but"),
        ({"train_images": u8(36)}, "holds uint8 data of 1 dimensions where uint8 of 3 are needed"),
        (
            {"t10k_labels": np.zeros(7, np.int32)},
            "holds int32 data of 1 dimensions where uint8 of 1 are needed",
        ),
        ({"t10k_images": u8(7, 5, 4)}, "differ in size (5x3 and 5x4)"),
        ({"train_images": u8(11, 5, 3), "train_labels": u8(11)}, "has 11 training and 7 test images"),
        ({"t10k_images": u8(0, 5, 3), "t10k_labels": u8(0)}, "has 36 training and 0 test images"),
        ({"train_images": u8(36, 0, 3), "t10k_images": u8(7, 0, 3)}, "not empty"),
        ({"train_images": b"\0\0\x08\x03"}, "breaks off within its header"),
        ({"t10k_labels": gzip.compress(format_idx(u8(7)))[:-4]}, "breaks off before its end"),
    ],
)
def test_a_bad_folder_is_one_sentence_that_names_it(changes, says, write, sentence) -> None:
    folder = write(**changes)
    text = sentence(load, "mnist", folder)
    assert str(folder) in text
    assert says in text


def test_an_unknown_name_is_answered_with_the_known_ones(write, sentence) -> None:
    assert "the known ones are mnist, mnist-sample" in sentence(load, "minst")
    assert "the known ones are mnist, mnist-sample" in sentence(load, "minst", write())


def test_a_folder_and_the_sample_exclude_each_other(write, sentence) -> None:
    assert "leave one of them out" in sentence(load, "mnist-sample", write())


def test_the_cache_is_read_and_checked(write, source, tmp_path, monkeypatch, sentence) -> None:
    monkeypatch.setitem(sources.DATASETS, "mnist", source())
    cache = write().rename(tmp_path / "mnist").parent
    assert len(load("mnist", cache=cache).train) == 33
    labels = cache / "mnist" / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\7")
    text = sentence(load, "mnist", cache=cache)
    assert f"{labels} is damaged" in text
    assert "delete it or run `python -m mpitrain data fetch`" in text
    labels.unlink()
    text = sentence(load, "mnist", cache=cache)
    assert "lacks train-labels-idx1-ubyte" in text
    assert "data fetch" in text
    assert "--dataset mnist-sample" in text


def test_where_the_cache_is(monkeypatch, sentence) -> None:
    monkeypatch.setenv("HOME", "/somebody")
    monkeypatch.delenv("MPITRAIN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/somebody/.cache/mpitrain")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_folder() == Path("/somebody/.cache/mpitrain")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/mpitrain")
    monkeypatch.setenv("MPITRAIN_CACHE", "~/mine")
    assert cache_folder() == Path("/somebody/mine")
    monkeypatch.setenv("MPITRAIN_CACHE", "~nobody-of-this-name/mine")
    assert "set MPITRAIN_CACHE or give --data-dir" in sentence(cache_folder)


def test_the_room_needs_neither_tensorflow_nor_mpi() -> None:
    code = """
import sys, mpitrain
before = set(sys.modules)
from mpitrain.data import batches, fetch, idx, mirrors, mnist, npm, order, sources
added = set(sys.modules) - before
assert not {name.split(".")[0] for name in sys.modules} & {"tensorflow", "keras", "mpi4py"}
own = {name for name in added if name.startswith("mpitrain.") and not name.startswith("mpitrain.data")}
assert own <= {"mpitrain.errors", "mpitrain.parameters", "mpitrain.parameters.layout"}, own
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
