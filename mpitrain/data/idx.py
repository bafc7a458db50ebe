"""IDX files, the format in which MNIST is published (http://yann.lecun.com/exdb/mnist/)."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from mpitrain.errors import InputError

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_REPLACE = "replace it with a whole copy"


def read_idx(path: Path) -> np.ndarray:
    """The array in the IDX file at ``path``, gzip or not.

    Raises:
        InputError: the file cannot be read, its gzip breaks off, or it is not one whole IDX array.
    """
    return parse_idx(read_content(path), path)


def read_content(path: Path) -> bytes:
    """The bytes of the file at ``path``, unpacked when they begin as gzip does, whatever the file is called.

    Raises:
        InputError: the file cannot be read, or its gzip is damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check its name and its permissions.") from None
    return unpack(content, path) if content.startswith(_GZIP_MAGIC) else content


def unpack(content: bytes, origin: Path | str) -> bytes:
    """What the gzip stream ``content`` holds; errors name ``origin``.

    Raises:
        InputError: the stream breaks off, is damaged, or is followed by other bytes.
    """
    try:
        return gzip.decompress(content)
    except EOFError:
        raise InputError(f"The gzip stream of {origin} breaks off before its end: {_REPLACE}.") from None
    except (OSError, zlib.error) as error:
        raise InputError(f"The gzip stream of {origin} is damaged ({error}): {_REPLACE}.") from None


def parse_idx(content: bytes, path: Path) -> np.ndarray:
    """The array that ``content`` (unpacked IDX bytes) describes; errors name ``path``.

    Returns:
        An array of native byte order; of uint8 and int8 a read-only view of ``content``.

    Raises:
        InputError: wrong magic number, or fewer or more bytes than the header announces.
    """
    dtype = _DTYPES.get(content[2]) if len(content) >= 4 and content[:2] == b"\0\0" else None
    dimensions = content[3] if dtype else 0
    if dtype is None or not dimensions:
        raise InputError(
            f"{path} is not an IDX file, it starts with the bytes {content[:4].hex(' ') or '(none)'}"
            f" instead of an IDX magic number: {_REPLACE}."
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise InputError(f"{path} breaks off within its header after {len(content):,} bytes: {_REPLACE}.")
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    expected = start + math.prod(shape) * np.dtype(dtype).itemsize
    if len(content) != expected:
        fault = "is truncated" if len(content) < expected else "has extra bytes at its end"
        raise InputError(f"{path} {fault}, {len(content):,} bytes where its header announces {expected:,}: {_REPLACE}.")
    array = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def format_idx(array: np.ndarray) -> bytes:
    """The IDX bytes of ``array`` (at least one dimension, a dtype of the format).

    Raises:
        ValueError: the format has no code for the dtype or the number of dimensions.
    """
    dtype = array.dtype.newbyteorder(">")
    code = next((code for code, known in _DTYPES.items() if np.dtype(known) == dtype), None)
    if code is None or not 1 <= array.ndim <= 255:
        raise ValueError(f"IDX cannot hold a {array.dtype} array of {array.ndim} dimensions")
    header = bytes([0, 0, code, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(dtype).tobytes()
