"""The order of the samples: a permutation for each epoch, a function of (seed, epoch) alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.data.order import Order

SEEDS = st.integers(0, 2**64)
EPOCHS = st.integers(0, 2**31)


@given(samples=st.integers(0, 300), seed=SEEDS, epoch=EPOCHS, parts=st.integers(1, 50))
def test_an_epoch_in_parts_is_one_pass(samples: int, seed: int, epoch: int, parts: int) -> None:
    order = Order(samples, seed)
    cuts = [(first, min(parts, samples - first)) for first in range(0, samples, parts)]
    taken = [index for first, count in cuts for index in order.indices(epoch, first, count)]
    assert sorted(taken) == list(range(samples))


@given(seed=SEEDS, epochs=st.lists(EPOCHS, min_size=1, max_size=6))
def test_what_was_asked_before_does_not_matter(seed: int, epochs: list[int]) -> None:
    asked = Order(40, seed)
    for epoch in epochs:
        np.testing.assert_array_equal(asked.indices(epoch, 3, 30), Order(40, seed).indices(epoch, 3, 30))


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = {tuple(Order(50, seed).indices(epoch, 0, 50)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_the_order_never_changes() -> None:
    # Fixed figures: another order under another numpy or mpitrain would break the resuming of old runs.
    assert Order(10, 0).indices(0, 0, 10).tolist() == [6, 3, 8, 1, 4, 5, 9, 2, 7, 0]
    assert Order(10, 7).indices(3, 0, 10).tolist() == [2, 1, 4, 8, 9, 3, 5, 7, 6, 0]


def test_every_place_gets_every_sample_about_equally_often() -> None:
    order, epochs, samples = Order(5, 11), 2000, 5
    counts = np.zeros((samples, samples))
    for epoch in range(epochs):
        counts[np.arange(samples), order.indices(epoch, 0, samples)] += 1
    expected = epochs / samples
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 45  # 16 degrees of freedom: 1 in 10,000 by chance, and this seed is fixed


def test_the_indices_are_read_only_and_within_the_epoch() -> None:
    order = Order(10, 1)
    with pytest.raises(ValueError, match="read-only"):
        order.indices(0, 0, 5)[0] = 3
    for first, count in ((6, 5), (-1, 2), (3, -1)):
        with pytest.raises(IndexError, match="of an epoch of 10 samples"):
            order.indices(0, first, count)
