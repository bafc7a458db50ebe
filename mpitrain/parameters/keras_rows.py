"""Gradients of embeddings: the rows that a batch has touched, where TensorFlow keeps them apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from mpitrain.parameters.layout import ALIGNMENT, Layout, aligned_zeros

LARGE = 65_536
"""Elements of a variable below which its gradient is made whole: the bookkeeping would cost more than it saves."""


def stays_rows(gradient: Any, size: int) -> bool:
    """Whether the gradient of a variable of ``size`` elements is to be handed over as rows."""
    return isinstance(gradient, tf.IndexedSlices) and size >= LARGE


class RowGradient:
    """The whole gradient of a model with large embeddings, in which only the rows that change are written.

    Args:
        layout: of the vector.
        sparse: indices of the variables that come as rows.
    """

    def __init__(self, layout: Layout, sparse: list[int]) -> None:
        self._layout = layout
        self._vector = aligned_zeros(layout.size, layout.dtype)
        views = layout.views(self._vector)
        self._tables = {index: views[index].reshape(views[index].shape[0], -1) for index in sparse}
        self.rows: dict[int, np.ndarray] = {}
        """Variable → its rows that are not zero, ascending."""
        self._copies = _dense_parts(layout, sparse)
        self.vector = self._vector.view()
        """Shape ``(layout.size,)``, read-only, valid until the next ``update``."""
        self.vector.flags.writeable = False

    def update(self, dense: np.ndarray, touched: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> None:
        """Take a gradient up.

        Args:
            dense: the gradients of all other variables, one after another, each padded as in the layout.
            touched: variable → row numbers of shape ``(n,)``, in any order and repeated at will, and the values to be
                added up for them, ``n`` rows.
        """
        for target, source in self._copies:
            self._vector[target] = dense[source]
        for index, (numbers, values) in touched.items():
            table = self._tables[index]
            if index in self.rows:
                table[self.rows[index]] = 0
            order = np.argsort(numbers, kind="stable")
            rows, starts = np.unique(numbers[order], return_index=True)
            if rows.size:
                table[rows] = np.add.reduceat(values.reshape(len(numbers), -1)[order], starts, axis=0)
            self.rows[index] = rows.astype(np.int64, copy=False)


def _dense_parts(layout: Layout, sparse: list[int]) -> list[tuple[slice, slice]]:
    """Where in the vector each part of what is dense belongs."""
    step = ALIGNMENT // layout.dtype.itemsize
    parts, place = [], 0
    for index, entry in enumerate(layout.entries):
        if index not in sparse:
            size = -(-entry.size // step) * step
            parts.append((slice(entry.offset, entry.offset + size), slice(place, place + size)))
            place += size
    return parts
