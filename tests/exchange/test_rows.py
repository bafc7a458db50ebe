"""Gradients of which rows alone are moved are the same vectors as those that are moved whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.exchange.servers.rows import RowBuffer, chosen, values_of, without
from mpitrain.parameters.layout import Layout

LAYOUT = Layout.of([("a", (5,)), ("table", (40, 7)), ("b", (3, 3)), ("cube", (9, 2, 5))])
TABLES = (1, 3)


@given(st.integers(0, LAYOUT.size - 1), st.integers(1, LAYOUT.size), st.integers(0, 2**32), st.integers(1, 6))
def test_a_buffer_holds_each_gradient_in_turn(start: int, length: int, seed: int, steps: int) -> None:
    shard, random = slice(start, min(start + length, LAYOUT.size)), np.random.default_rng(seed)
    buffer = RowBuffer(np.zeros(shard.stop - shard.start, np.float32), shard, LAYOUT)
    for _ in range(steps):
        views = LAYOUT.views(gradient := np.zeros(LAYOUT.size, np.float32))
        rows = {}
        for index, view in enumerate(views):
            view[...] = random.normal(size=view.shape)
            if index in TABLES and random.random() < 0.8:
                touched = np.flatnonzero(random.random(len(view)) < random.choice([0, 0.1, 0.5, 1]))
                view[np.setdiff1d(np.arange(len(view)), touched)] = 0
                rows[index] = touched
        picked = chosen(rows, shard, LAYOUT)
        entries = [LAYOUT.entries[index] for index in picked]
        parts = buffer.dense(picked)
        assert parts == without(shard, entries)
        moved = 0
        for part in parts:
            buffer.part(part)[:] = gradient[part]
            moved += gradient[part].nbytes
        for index, own in picked.items():
            values = values_of(gradient, LAYOUT.entries[index], own)
            buffer.put(index, own, values)
            moved += own.nbytes + values.nbytes
        assert np.array_equal(buffer.vector, gradient[shard])
        assert moved <= gradient[shard].nbytes
