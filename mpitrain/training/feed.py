"""The data of one rank, as batches for tickets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mpitrain.data.batches import batch, batch_buffer
from mpitrain.data.mnist import Dataset, Split
from mpitrain.data.order import Order
from mpitrain.exchange.tickets import Ticket
from mpitrain.parameters.step import Batch

EVALUATION_BATCH = 500


class Feed:
    """Batches of a data set.

    Args:
        dataset: where the samples are.
        seed: of the order of the training samples.
        size: samples in the largest training batch.
    """

    def __init__(self, dataset: Dataset, seed: int, size: int) -> None:
        self.dataset = dataset
        self._order = Order(len(dataset.train), seed)
        self._training = batch_buffer(dataset.train, min(size, len(dataset.train)))
        self._evaluation = batch_buffer(dataset.train, EVALUATION_BATCH)

    def batch(self, ticket: Ticket) -> Batch:
        """The samples of a ticket; valid until the next call."""
        indices = self._order.indices(ticket.epoch, ticket.first, ticket.size)
        return Batch(*batch(self.dataset.train, indices, self._training))

    def part(self, split: Split, index: int, parts: int) -> Iterator[Batch]:
        """The ``index``-th of ``parts`` nearly equal parts of a split, in batches; each valid until the next."""
        low, high = len(split) * index // parts, len(split) * (index + 1) // parts
        for first in range(low, high, EVALUATION_BATCH):
            indices = np.arange(first, min(first + EVALUATION_BATCH, high))
            yield Batch(*batch(split, indices, self._evaluation))
