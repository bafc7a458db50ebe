"""Tickets: which samples of which epoch a step works on, and when the run is over.

Tickets are integers that travel in messages and that server 0 decides on, so their arithmetic belongs to the exchange;
which image the i-th sample of an epoch is, is the data's business.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Ticket(NamedTuple):
    """Samples ``first .. first + size`` of the permutation of ``epoch``; ``number`` counts tickets from 0."""

    number: int
    epoch: int
    first: int
    size: int

    def part(self, index: int, parts: int) -> Ticket:
        """The ``index``-th of ``parts`` nearly equal parts; it may be empty."""
        low, high = self.size * index // parts, self.size * (index + 1) // parts
        return Ticket(self.number, self.epoch, self.first + low, high - low)


@dataclass(frozen=True)
class TicketBook:
    """All tickets of a run, in order; each epoch is one pass over the data.

    Args:
        samples: samples in an epoch.
        size: samples in a full ticket (the global batch where workers step together, else one worker's batch).
        total_samples: end when so many samples were handed out; the last ticket is cut to fit.
        total_updates: end after so many updates; a dropped update takes a further ticket, so tickets have no end then.
        per_update: tickets that make one update.
    """

    samples: int
    size: int
    total_samples: int | None = None
    total_updates: int | None = None
    per_update: int = 1

    def __iter__(self) -> Iterator[Ticket]:
        handed = 0
        for number in itertools.count():
            epoch, step = divmod(number, self.per_epoch)
            first = step * self.size
            count = min(self.size, self.samples - first)
            if self.total_samples is not None:
                count = min(count, self.total_samples - handed)
                if count <= 0:
                    return
            handed += count
            yield Ticket(number, epoch, first, count)

    @property
    def per_epoch(self) -> int:
        """Tickets in an epoch."""
        return -(-self.samples // self.size)

    @property
    def full_update(self) -> int:
        """Samples of an update, where its tickets are full."""
        return self.size * self.per_update

    @property
    def tickets(self) -> int | None:
        """Tickets in the run; None where they have no end, because updates are counted."""
        return None if self.total_samples is None else self._tickets_for(self.total_samples)

    @property
    def updates(self) -> int:
        """Updates in the run, when none is dropped."""
        bounds = [] if self.total_updates is None else [self.total_updates]
        if self.tickets is not None:
            bounds.append(-(-self.tickets // self.per_update))
        if not bounds:
            raise ValueError("a book needs total_samples or total_updates")
        return min(bounds)

    def samples_after(self, updates: int) -> int:
        """Samples in the tickets of the first ``updates`` updates."""
        epochs, rest = divmod(updates * self.per_update, self.per_epoch)
        handed = epochs * self.samples + min(rest * self.size, self.samples)
        return handed if self.total_samples is None else min(handed, self.total_samples)

    def updates_for(self, samples: float) -> int:
        """The smallest number of updates whose tickets hold at least ``samples`` samples, within the run."""
        # Tenths of an epoch are no exact floats: 3 x 0.1 of 5,500 samples must not become 1,651.
        tickets = self._tickets_for(math.ceil(round(samples, 6)))
        return min(self.updates, -(-tickets // self.per_update))

    def _tickets_for(self, samples: int) -> int:
        epochs, rest = divmod(samples, self.samples)
        return epochs * self.per_epoch + -(-rest // self.size)

    def cuts(self, every: int | float | None, unit: str) -> tuple[int, ...]:
        """The versions at which all ranks meet: each ``every`` ``"steps"`` or ``"epochs"``, and the last.

        Args:
            every: a distance, or None for the last version only.
            unit: ``"steps"`` counts updates, ``"epochs"`` passes over the data.
        """
        last = self.updates
        if every is None:
            return (last,)
        if unit == "steps":
            marks: set[int] = set(range(int(every), last, int(every)))
        else:
            marks = set()
            distance = max(1.0, every * self.samples)
            for k in itertools.count(1):
                mark = self.updates_for(k * distance)
                if mark >= last:
                    break
                marks.add(mark)
        return tuple(sorted(marks | {last}))
