"""Gradients of which only some rows of some variables are not zero, as those of embeddings: only these are moved.

A buffer for gradients stays a plain vector for whoever reads it; it is kept up to date by clearing the rows of the
gradient before and writing those of the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from mpitrain.parameters.layout import Entry, Layout


class RowBuffer:
    """A worker's gradient for one shard.

    Args:
        vector: shape ``(shard.stop - shard.start,)``, zeros.
        shard: the part of the whole vector.
        layout: of the whole vector.
    """

    def __init__(self, vector: np.ndarray, shard: slice, layout: Layout) -> None:
        self.vector, self._shard, self._entries = vector, shard, layout.entries
        self._written: dict[int, np.ndarray | None] = {}
        """Variable → its rows that are not zero; None where any may be."""
        self._dense: dict[tuple[int, ...], list[slice]] = {}

    def dense(self, sparse: Iterable[int]) -> list[slice]:
        """The parts of the whole vector that are written anew: the shard without the variables ``sparse``."""
        key = tuple(sparse)
        for index, entry in enumerate(self._entries):
            if index not in key and entry.offset < self._shard.stop and entry.offset + entry.size > self._shard.start:
                self._written[index] = None
        if key not in self._dense:
            self._dense[key] = without(self._shard, [self._entries[index] for index in key])
        return self._dense[key]

    def part(self, part: slice) -> np.ndarray:
        """A part of the whole vector, of which this shard has a piece."""
        return self.vector[part.start - self._shard.start : part.stop - self._shard.start]

    def put(self, index: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Make ``values`` the rows of a variable that are not zero.

        Args:
            index: of the variable in the layout.
            rows: ascending, each once.
            values: shape ``(len(rows), elements of a row)``; what lies beyond the shard is left out.
        """
        before = self._written.get(index, rows[:0])
        entry = self._entries[index]
        if before is None:
            low, high = max(entry.offset, self._shard.start), min(entry.offset + entry.size, self._shard.stop)
            self.part(slice(low, high))[:] = 0
        else:
            self._set(entry, before, None)
        self._set(entry, rows, values)
        self._written[index] = rows

    def _set(self, entry: Entry, rows: np.ndarray, values: np.ndarray | None) -> None:
        width, base = width_of(entry), entry.offset - self._shard.start
        first = max(0, math.ceil(-base / width))
        last = min(entry.shape[0], (self.vector.size - base) // width)
        low, high = np.searchsorted(rows, (first, max(first, last)))
        if low < high:
            whole = self.vector[base + first * width : base + last * width].reshape(-1, width)
            whole[rows[low:high] - first] = 0 if values is None else values[low:high]
        # A border of the shard may cut the first and the last row.
        for place in (*range(low), *range(high, len(rows))):
            start = base + int(rows[place]) * width
            begin, end = max(start, 0), min(start + width, self.vector.size)
            if begin < end:
                self.vector[begin:end] = 0 if values is None else values[place, begin - start : end - start]


def chosen(rows: Mapping[int, np.ndarray], shard: slice, layout: Layout) -> dict[int, np.ndarray]:
    """Which variables' gradients are smaller as rows, and the rows of each that a shard has a part of.

    Args:
        rows: variable → its rows that are not zero, ascending.
        shard: a part of the whole vector.
        layout: of the whole vector.
    """
    found = {}
    for index, all_rows in rows.items():
        entry = layout.entries[index]
        width = width_of(entry)
        low, high = max(shard.start, entry.offset), min(shard.stop, entry.offset + entry.size)
        if low >= high:
            continue
        first, last = (low - entry.offset) // width, -(-(high - entry.offset) // width)
        own = all_rows[slice(*np.searchsorted(all_rows, (first, last)))]
        if own.size * (width * layout.dtype.itemsize + own.itemsize) < (high - low) * layout.dtype.itemsize:
            found[index] = own
    return found


def values_of(gradient: np.ndarray, entry: Entry, rows: np.ndarray) -> np.ndarray:
    """A copy of some rows of a variable, shape ``(len(rows), elements of a row)``."""
    return gradient[entry.offset : entry.offset + entry.size].reshape(-1, width_of(entry))[rows]


def width_of(entry: Entry) -> int:
    """Elements of a row of a variable: of what one index of its first axis names."""
    return entry.size // entry.shape[0]


def without(shard: slice, entries: list[Entry]) -> list[slice]:
    """The parts of a shard that lie outside of some variables."""
    parts, low = [], shard.start
    for entry in sorted(entries, key=lambda e: e.offset):
        if low < entry.offset:
            parts.append(slice(low, min(entry.offset, shard.stop)))
        low = max(low, entry.offset + entry.size)
    if low < shard.stop:
        parts.append(slice(low, shard.stop))
    return parts
