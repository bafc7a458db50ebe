"""Where each variable of a model lies in the one parameter vector."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes: every variable, shard and bucket starts on such a border, so that tensors can alias the vector."""


@dataclass(frozen=True)
class Entry:
    """One variable: its elements are ``vector[offset : offset + size]``, in C order."""

    name: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class Layout:
    """The variables of a model in one contiguous vector of ``size`` elements of ``dtype``, padding included."""

    entries: tuple[Entry, ...]
    dtype: np.dtype
    size: int

    @classmethod
    def of(cls, variables: Iterable[tuple[str, Sequence[int]]], dtype: npt.DTypeLike = np.float32) -> Layout:
        """Lay (name, shape) pairs out in their order, each on an ``ALIGNMENT`` border."""
        dtype = np.dtype(dtype)
        step = ALIGNMENT // dtype.itemsize
        entries = []
        offset = 0
        for name, shape in variables:
            size = math.prod(shape)
            entries.append(Entry(name, tuple(int(n) for n in shape), offset, size))
            offset += -(-size // step) * step
        return cls(tuple(entries), dtype, offset)

    @property
    def nbytes(self) -> int:
        """Bytes of the vector, padding included."""
        return self.size * self.dtype.itemsize

    @property
    def parameter_count(self) -> int:
        """Elements that belong to variables, padding left out."""
        return sum(entry.size for entry in self.entries)

    def views(self, vector: np.ndarray) -> list[np.ndarray]:
        """Each variable as an array that shares memory with ``vector`` (shape ``(size,)``)."""
        return [vector[e.offset : e.offset + e.size].reshape(e.shape) for e in self.entries]

    def pack(self, arrays: Sequence[np.ndarray], out: np.ndarray | None = None) -> np.ndarray:
        """Copy ``arrays``, one for each entry, into ``out`` or a new aligned vector; padding becomes zero."""
        vector = aligned_zeros(self.size, self.dtype) if out is None else out
        vector[:] = 0
        for view, array in zip(self.views(vector), arrays, strict=True):
            view[...] = array
        return vector

    def digest(self) -> str:
        """A hash of names, shapes, dtype and offsets: equal on two ranks when their vectors mean the same.

        The numbers that Keras appends to names (``dense_3``) say how many layers a process has made; they do not count.
        """
        described = [[re.sub(r"_\d+(?=/|$)", "", e.name), list(e.shape), e.offset] for e in self.entries]
        text = json.dumps([self.dtype.name, described]).encode()
        return hashlib.blake2b(text, digest_size=16).hexdigest()


def aligned_zeros(size: int, dtype: npt.DTypeLike = np.float32) -> np.ndarray:
    """Zeros of shape ``(size,)`` whose first byte lies on an ``ALIGNMENT`` border."""
    dtype = np.dtype(dtype)
    raw = np.zeros(size * dtype.itemsize + ALIGNMENT, np.uint8)
    shift = -raw.ctypes.data % ALIGNMENT
    return raw[shift : shift + size * dtype.itemsize].view(dtype)
