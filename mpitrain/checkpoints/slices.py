"""One rank's slice of a checkpoint as a safetensors file, made piece by piece.

The safetensors library writes a file from tensors that are all in memory; a slice that is larger than a piece is to go
out without a second copy of it. The format is a header's length (64 bits, little-endian), the header in JSON, and the
tensors' bytes (https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpitrain.checkpoints.packing import Holding

PIECE = 64 * 2**20
"""Bytes that are copied, sent, written or read at a time."""

_TYPES = {"float16": "F16", "float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64", "uint32": "U32"}
_BORDER = 64


@dataclass(frozen=True)
class Stretch:
    """Where a part of a vector lies in a file.

    Args:
        vector: its name.
        dtype: of its elements, as numpy calls it.
        start: first packed element.
        stop: one past the last.
        offset: bytes before it in the file.
    """

    vector: str
    dtype: str
    start: int
    stop: int
    offset: int


class Slice:
    """What goes into one file.

    Args:
        chosen: which vectors, from and to which packed element.
    """

    def __init__(self, chosen: Sequence[tuple[Holding, int, int]]) -> None:
        # The widest elements first, so that each tensor lies on a border of its own elements.
        chosen = sorted(chosen, key=lambda item: -item[0].dtype.itemsize)
        self._holdings = [holding for holding, _, _ in chosen]
        ranges = [(low, high) for _, low, high in chosen]
        entries: dict[str, object] = {"__metadata__": {"format": "mpitrain"}}
        place, places = 0, []
        for holding, (low, high) in zip(self._holdings, ranges, strict=True):
            end = place + (high - low) * holding.dtype.itemsize
            kind = _TYPES[holding.dtype.name]
            entries[holding.name] = {"dtype": kind, "shape": [high - low], "data_offsets": [place, end]}
            places.append(place)
            place = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % _BORDER)
        self.head = len(text).to_bytes(8, "little") + text
        self.stretches = [
            Stretch(holding.name, holding.dtype.name, low, high, len(self.head) + place)
            for holding, (low, high), place in zip(self._holdings, ranges, places, strict=True)
        ]
        self.nbytes = len(self.head) + place

    def copy(self, out: np.ndarray) -> None:
        """Write the whole file into ``out``, uint8 of shape ``(nbytes,)``."""
        out[: len(self.head)] = np.frombuffer(self.head, np.uint8)
        for holding, stretch in zip(self._holdings, self.stretches, strict=True):
            size = (stretch.stop - stretch.start) * holding.dtype.itemsize
            target = out[stretch.offset : stretch.offset + size].view(holding.dtype)
            _gather(holding, holding.load(), stretch.start, stretch.stop, target)

    def pieces(self) -> Iterator[np.ndarray]:
        """The file's bytes, uint8 of at most ``PIECE`` at a time, each valid until the next."""
        yield np.frombuffer(self.head, np.uint8)
        scratch = np.empty(PIECE, np.uint8)
        for holding, stretch in zip(self._holdings, self.stretches, strict=True):
            memory, count = holding.load(), PIECE // holding.dtype.itemsize
            for low in range(stretch.start, stretch.stop, count):
                high = min(low + count, stretch.stop)
                target = scratch[: (high - low) * holding.dtype.itemsize]
                _gather(holding, memory, low, high, target.view(holding.dtype))
                yield target


def _gather(holding: Holding, memory: np.ndarray, low: int, high: int, out: np.ndarray) -> None:
    for view, to in holding.views(memory, low, high):
        out[to] = view


class Sink:
    """A new file that is hashed as it is written, and lasts through a power cut once it is closed.

    Raises:
        OSError: here and from every method.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._hash = hashlib.sha256()
        self._unsynced = 0
        self.nbytes = 0

    def write(self, piece: np.ndarray) -> None:
        """Append uint8 ``piece``."""
        for low in range(0, piece.size, PIECE):
            view = piece[low : low + PIECE].data
            self._hash.update(view)
            while view:
                view = view[self._file.write(view) :]
            self._sync(min(PIECE, piece.size - low))

    def close(self) -> str:
        """Wait for the disk; returns the SHA-256 in hexadecimal."""
        with self._file:
            os.fsync(self._file.fileno())
        return self._hash.hexdigest()

    def abandon(self) -> None:
        """Close without waiting."""
        self._file.close()

    def _sync(self, written: int) -> None:
        # In pieces, so that the last wait is a short one, and a slow disk shows as slow rather than as stuck.
        self.nbytes += written
        self._unsynced += written
        if self._unsynced >= PIECE:
            os.fdatasync(self._file.fileno())
            self._unsynced = 0
