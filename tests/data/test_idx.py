"""IDX files: what is written is read again, and every defect is one sentence that names the file."""

from __future__ import annotations

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from mpitrain.data.idx import format_idx, parse_idx, read_idx
from mpitrain.errors import InputError

DTYPES = ("u1", "i1", "<i2", ">i2", "<i4", ">i4", "<f4", ">f4", "<f8", ">f8")
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
)
GOOD = format_idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
HEADER = 16


@given(array=ARRAYS, packed=st.booleans(), suffix=st.sampled_from(["", ".gz"]))
def test_round_trip_whatever_the_file_is_called(array: np.ndarray, packed: bool, suffix: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"array{suffix}"
        path.write_bytes(gzip.compress(format_idx(array)) if packed else format_idx(array))
        again = read_idx(path)
    assert again.shape == array.shape
    assert again.dtype == array.dtype.newbyteorder("=")
    assert again.tobytes() == array.astype(again.dtype).tobytes()


def test_the_bytes_are_those_of_the_format() -> None:
    assert format_idx(np.array([[1, 2, 258]], ">i2")) == bytes.fromhex("00000b02 00000001 00000003 0001 0002 0102")


@pytest.mark.parametrize("array", [np.zeros(3, np.uint16), np.zeros((), np.uint8), np.zeros(2, complex)])
def test_what_the_format_cannot_hold_is_refused(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="IDX cannot hold"):
        format_idx(array)


@given(array=ARRAYS, data=st.data())
def test_any_missing_or_extra_byte_is_noticed(array: np.ndarray, data: st.DataObject) -> None:
    content = format_idx(array)
    cut = data.draw(st.integers(0, len(content) - 1))
    for wrong in (content[:cut], content + b"\0"):
        with pytest.raises(InputError, match=r"^somewhere"):
            parse_idx(wrong, Path("somewhere"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (GOOD[:-1], "is truncated, 39 bytes where its header announces 40"),
        (GOOD[:HEADER], "is truncated, 16 bytes where its header announces 40"),
        (GOOD[:9], "breaks off within its header after 9 bytes"),
        (GOOD + b"\0", "has extra bytes at its end, 41 bytes where its header announces 40"),
        (b"\1" + GOOD[1:], "starts with the bytes 01 00 08 03"),
        (GOOD[:2] + b"\x0a" + GOOD[3:], "starts with the bytes 00 00 0a 03"),
        (GOOD[:3] + b"\0" + GOOD[4:], "starts with the bytes 00 00 08 00"),
        (b"<html>not found</html>", "starts with the bytes 3c 68 74 6d"),
        (b"", "starts with the bytes (none)"),
        (gzip.compress(GOOD)[:-1], "breaks off before its end"),
        (gzip.compress(GOOD)[:12], "breaks off before its end"),
        (gzip.compress(GOOD)[:2], "breaks off before its end"),
        (gzip.compress(GOOD) + b"more", "is damaged (Not a gzipped file"),
        (gzip.compress(GOOD)[:-8] + bytes(8), "is damaged (CRC check failed"),
        (gzip.compress(GOOD)[:10] + b"\xff" * 20, "is damaged (Error -3"),
        (gzip.compress(GOOD[:-1]), "is truncated, 39 bytes"),
    ],
)
def test_a_defect_is_one_sentence_that_names_the_file(content, says, tmp_path, sentence) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    text = sentence(read_idx, path)
    assert str(path) in text
    assert says in text
    assert "replace it with a whole copy" in text


def test_what_cannot_be_read_is_one_sentence(tmp_path, sentence) -> None:
    assert "cannot be read (No such file" in sentence(read_idx, tmp_path / "absent")
    assert "cannot be read (Is a directory" in sentence(read_idx, tmp_path)
    assert "cannot be read (Input/output error" in sentence(read_idx, Path("/proc/self/mem"))
