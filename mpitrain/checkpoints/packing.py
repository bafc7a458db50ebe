"""Vectors without the padding that they have in memory, which is how files hold them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from mpitrain.parameters.layout import Layout


class Packing:
    """Places in a padded vector of ``layout``, and in the same without padding.

    Args:
        layout: of the padded vector.
    """

    def __init__(self, layout: Layout) -> None:
        self._offsets = [entry.offset for entry in layout.entries]
        self._sizes = [entry.size for entry in layout.entries]
        self._before = [0, *accumulate(self._sizes)]
        self.size = self._before[-1]

    def packed(self, place: int) -> int:
        """Elements of variables before ``place`` of the padded vector."""
        index = bisect_right(self._offsets, place) - 1
        return 0 if index < 0 else self._before[index] + min(place - self._offsets[index], self._sizes[index])

    def runs(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """(place in the padded vector, packed place, length) of the stretches that make packed ``low`` to ``high``."""
        index = bisect_right(self._before, low) - 1
        while low < high:
            length = min(self._before[index + 1], high) - low
            if length:
                yield self._offsets[index] + low - self._before[index], low, length
            low += length
            index += 1


@dataclass(frozen=True)
class Holding:
    """A stored vector, or a stretch of one, in the memory of one rank.

    Args:
        name: of the vector.
        dtype: of its elements.
        size: elements of the stretch, packed.
        load: gives its memory, or a copy of that.
        start: packed elements of the vector before the stretch.
        packing: how the memory is padded; None where it is not.
        offset: of the memory's first element in the padded vector.
    """

    name: str
    dtype: np.dtype
    size: int
    load: Callable[[], np.ndarray]
    start: int = 0
    packing: Packing | None = None
    offset: int = 0

    @property
    def stop(self) -> int:
        """Packed elements of the vector up to the end of the stretch."""
        return self.start + self.size

    def part(self, index: int, parts: int) -> tuple[int, int]:
        """The ``index``-th of ``parts`` nearly equal parts, from and to."""
        return self.start + self.size * index // parts, self.start + self.size * (index + 1) // parts

    def views(self, memory: np.ndarray, low: int, high: int) -> Iterator[tuple[np.ndarray, slice]]:
        """The pieces of ``memory`` (what ``load`` gave) that are packed ``low`` to ``high``, and where each goes."""
        if self.packing is None:
            yield memory[low - self.start : high - self.start], slice(0, high - low)
            return
        for place, packed, length in self.packing.runs(low, high):
            begin = place - self.offset
            yield memory[begin : begin + length], slice(packed - low, packed - low + length)
