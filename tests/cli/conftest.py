from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mpitrain.data.sources import FILES
from tests.support.mpi import Ended

Says = Callable[[Ended, int], str]


def sentence_of(ended: Ended, code: int = 2) -> str:
    """The one sentence of a job that ended with ``code``, the only one, without a traceback."""
    told = [line for line in ended.err.splitlines() if "mpitrain: error:" in line]
    assert len(told) == 1, f"{len(told)} sentences\n{ended.err}"
    assert told[0].startswith("mpitrain: error: ")
    assert "Traceback" not in ended.err + ended.out, ended.err
    assert ended.code == code, (ended.code, ended.err)
    return told[0].removeprefix("mpitrain: error: ")


def idx(array: np.ndarray) -> bytes:
    """``array`` (uint8) as an IDX file."""
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny data folder: 24 training images, of which 2 become the validation set, and 10 test images."""
    random = np.random.default_rng(0)
    place = tmp_path / "data"
    place.mkdir()
    for images, labels, count in ((*FILES[:2], 24), (*FILES[2:], 10)):
        (place / images).write_bytes(idx(random.integers(0, 256, (count, 28, 28), np.uint8)))
        (place / labels).write_bytes(idx(np.arange(count, dtype=np.uint8) % 10))
    return place


def damage(folder: Path, kind: str) -> None:
    """Spoil the training images of ``folder`` in one way."""
    images, labels = folder / FILES[0], folder / FILES[1]
    content = images.read_bytes()
    match kind:
        case "lacking":
            labels.unlink()
        case "truncated":
            images.write_bytes(content[:-1])
        case "magic":
            images.write_bytes(b"\1\2\3\4" + content[4:])
        case "mismatch":
            labels.write_bytes(idx(np.zeros(23, np.uint8)))
        case "gzip":
            images.unlink()
            images.with_suffix(".gz").write_bytes(gzip.compress(content)[:-20])
