"""Tickets: which samples of which epoch a step works on, and when the run is over.

Tickets are integers that travel in messages and that server 0 decides on, so their arithmetic belongs to the exchange;
which image the i-th sample of an epoch is, is the data's business.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
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


class Span(NamedTuple):
    """Samples ``first .. first + size`` of the permutation of ``epoch``."""

    epoch: int
    first: int
    size: int


@dataclass(frozen=True)
class Place:
    """How far a run has come in its data, when nothing is in flight.

    Args:
        handed: samples handed out in order since the start of the run.
        returned: those of them that must be handed out again.
    """

    handed: int = 0
    returned: tuple[Span, ...] = ()

    @property
    def settled(self) -> int:
        """Samples that are done with."""
        return self.handed - sum(span.size for span in self.returned)


@dataclass(frozen=True)
class TicketBook:
    """All tickets of a run, in order; each epoch is one pass over the data.

    Args:
        samples: samples in an epoch.
        size: samples in a full ticket (the global batch where workers step together, else one worker's batch).
        total_samples: end when so many samples were handed out; the last ticket is cut to fit.
        total_updates: end after so many updates; a dropped update takes a further ticket, so tickets have no end then.
        per_update: tickets that make one update.
        begin: where a resumed run goes on; what must be handed out again comes first.
        version: updates applied before that.
    """

    samples: int
    size: int
    total_samples: int | None = None
    total_updates: int | None = None
    per_update: int = 1
    begin: Place = Place()
    version: int = 0

    def __iter__(self) -> Iterator[Ticket]:
        numbers = itertools.count()
        for span in self._again:
            yield Ticket(next(numbers), *span)
        handed = self.begin.handed
        for number in numbers:
            epoch, first = divmod(handed, self.samples)
            count = min(self.size, self.samples - first)
            if self.total_samples is not None:
                count = min(count, self.total_samples - handed)
                if count <= 0:
                    return
            handed += count
            yield Ticket(number, epoch, first, count)

    @property
    def per_epoch(self) -> int:
        """Tickets in an epoch that begins with a full one."""
        return -(-self.samples // self.size)

    @property
    def full_update(self) -> int:
        """Samples of an update, where its tickets are full."""
        return self.size * self.per_update

    @property
    def tickets(self) -> int | None:
        """Tickets in the run; None where they have no end, because updates are counted."""
        return None if self.total_samples is None else len(self._again) + self._between(self.total_samples)

    @property
    def updates(self) -> int:
        """Updates in the run, when none is dropped from here on."""
        bounds = [] if self.total_updates is None else [self.total_updates]
        if self.tickets is not None:
            bounds.append(self.version - (-self.tickets // self.per_update))
        if not bounds:
            raise ValueError("a book needs total_samples or total_updates")
        return min(bounds)

    def samples_after(self, updates: int) -> int:
        """Samples in the tickets of the first ``updates`` updates, when none is dropped from here on."""
        left = (updates - self.version) * self.per_update
        again = self._again
        if left < len(again):
            return self.begin.settled + sum(span.size for span in again[:left])
        left -= len(again)
        epoch, first = divmod(self.begin.handed, self.samples)
        to_end = -(-(self.samples - first) // self.size)
        if left < to_end:
            handed = self.begin.handed + left * self.size
        else:
            epochs, rest = divmod(left - to_end, self.per_epoch)
            handed = (epoch + 1 + epochs) * self.samples + rest * self.size
        return handed if self.total_samples is None else min(handed, self.total_samples)

    def updates_for(self, samples: float) -> int:
        """The smallest number of updates whose tickets hold at least ``samples`` samples, within the run."""
        # Tenths of an epoch are no exact floats: 3 x 0.1 of 5,500 samples must not become 1,651.
        wanted, done, tickets = math.ceil(round(samples, 6)), self.begin.settled, 0
        for span in self._again:
            if done < wanted:
                done += span.size
                tickets += 1
        tickets += self._between(wanted)
        return min(self.updates, self.version - (-tickets // self.per_update))

    @property
    def _again(self) -> list[Span]:
        """What must be handed out again, in pieces that fit a ticket."""
        return [
            Span(epoch, low, min(self.size, first + size - low))
            for epoch, first, size in self.begin.returned
            for low in range(first, first + size, self.size)
        ]

    def _between(self, samples: int) -> int:
        """Fresh tickets until ``samples`` samples are handed out."""
        if samples <= self.begin.handed:
            return 0
        (old, low), (new, high) = divmod(self.begin.handed, self.samples), divmod(samples, self.samples)
        if old == new:
            return -(-(high - low) // self.size)
        return -(-(self.samples - low) // self.size) + (new - old - 1) * self.per_epoch - (-high // self.size)

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
        return tuple(sorted({mark for mark in marks if mark > self.version} | {last}))


class Tickets:
    """A walk through a book.

    Args:
        book: from its beginning on.
    """

    def __init__(self, book: TicketBook) -> None:
        self._book, self._walk = book, iter(book)
        self._handed, self._again = book.begin.handed, book._again
        self.upcoming = next(self._walk, None)
        """What :meth:`take` gives next; None at the end."""

    def take(self) -> Ticket | None:
        """The next ticket, or None at the end."""
        ticket, self.upcoming = self.upcoming, next(self._walk, None)
        if ticket is not None:
            if self._again:
                self._again.pop(0)
            else:
                self._handed = ticket.epoch * self._book.samples + ticket.first + ticket.size
        return ticket

    def place(self, returned: Iterable[Ticket] = ()) -> Place:
        """How far the walk has come, with ``returned`` to be handed out again."""
        spans = [Span(*ticket[1:]) for ticket in returned]
        return Place(self._handed, (*self._again, *spans))
