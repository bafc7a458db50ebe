"""Checking a checkpoint's files, and reading stretches of its vectors where they are wanted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from mpitrain.checkpoints.manifest import STATE, Manifest, read_manifest
from mpitrain.checkpoints.packing import Holding
from mpitrain.checkpoints.slices import PIECE
from mpitrain.errors import InputError


def check(folder: Path, thorough: bool = True) -> Manifest:
    """The manifest of a checkpoint, all files of which are what it says.

    Args:
        folder: of the checkpoint.
        thorough: whether to read the files; else only their lengths are looked at.

    Raises:
        InputError: naming the checkpoint and what is wrong with it.
    """
    manifest = read_manifest(folder)
    for name, stored in manifest.files.items():
        path = folder / name
        try:
            with path.open("rb", buffering=0) as file:
                size = path.stat().st_size
                found = _hash(file) if thorough and size == stored.nbytes else ""
        except OSError as error:
            raise InputError(f"the checkpoint {folder} cannot be read ({error.strerror}: {name})") from error
        if size != stored.nbytes:
            raise InputError(
                f"the checkpoint {folder} is damaged: {name} has {size:,} bytes instead of {stored.nbytes:,}"
            )
        if thorough and found != stored.sha256:
            raise InputError(f"the checkpoint {folder} is damaged: the SHA-256 of {name} is not the manifest's")
    return manifest


def _hash(file: FileIO) -> str:
    digest, scratch = hashlib.sha256(), memoryview(bytearray(2**20))
    while count := file.readinto(scratch):
        digest.update(scratch[:count])
    return digest.hexdigest()


class Reader:
    """Reads from a checkpoint that was found whole.

    Args:
        folder: of the checkpoint.
        manifest: of it.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest

    def read(self, vector: str, low: int, high: int) -> Iterator[np.ndarray]:
        """Packed elements ``low`` to ``high`` of a vector in order, at most ``PIECE`` bytes at a time.

        Raises:
            InputError: a file cannot be read.
        """
        stored = [(s, name) for name, file in self.manifest.files.items() for s in file.stretches if s.vector == vector]
        for stretch, name in sorted(stored, key=lambda pair: pair[0].start):
            dtype = np.dtype(stretch.dtype)
            begin, end = max(low, stretch.start), min(high, stretch.stop)
            for first in range(begin, end, PIECE // dtype.itemsize):
                count = min(PIECE // dtype.itemsize, end - first)
                offset = stretch.offset + (first - stretch.start) * dtype.itemsize
                yield self._read(name, offset, count, dtype)

    def fill(self, holding: Holding, memory: np.ndarray) -> None:
        """Read what ``holding`` says into ``memory``, which is laid out as what ``holding.load`` gives."""
        place = holding.start
        for values in self.read(holding.name, holding.start, holding.stop):
            scatter(holding, memory, place, values)
            place += values.size

    def state(self) -> dict[str, np.ndarray]:
        """The small arrays: the model's float state, and what each worker carries on.

        Raises:
            InputError: the file cannot be read.
        """
        try:
            return dict(load((self.folder / STATE).read_bytes()))
        except (OSError, SafetensorError) as error:
            raise InputError(f"the checkpoint {self.folder} cannot be read ({error}: {STATE})") from error

    def _read(self, name: str, offset: int, count: int, dtype: np.dtype) -> np.ndarray:
        try:
            values = np.fromfile(self.folder / name, dtype, count, offset=offset)
        except OSError as error:
            raise InputError(f"the checkpoint {self.folder} cannot be read ({error.strerror}: {name})") from error
        if values.size != count:
            raise InputError(f"the checkpoint {self.folder} is damaged: {name} ends too early")
        return values


def scatter(holding: Holding, memory: np.ndarray, low: int, values: np.ndarray) -> None:
    """Put packed elements from ``low`` on into ``memory``, which is laid out as what ``holding.load`` gives."""
    for view, place in holding.views(memory, low, low + values.size):
        view[...] = values[place]
