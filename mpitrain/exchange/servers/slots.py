"""Where the versions of a server's parameters lie while workers need them, and which place is free for the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import numpy as np

from mpitrain.parameters.layout import aligned_zeros

NO_TICKET = -1
"""Where all meet."""


class Slots(Protocol):
    """Places for versions of a server's shard; one of them is current."""

    def reads(self, worker: int) -> bool:
        """Whether a worker reads them where they lie; else they travel to it."""
        ...

    def __getitem__(self, index: int) -> np.ndarray:
        """The memory of a slot, this server's shard of it."""
        ...

    def free(self, current: int) -> int:
        """A slot that nobody needs; not ``current``."""
        ...

    def hold(self, worker: int, ticket: int, index: int, travels: bool) -> None:
        """An answer points ``worker`` to a slot, or says that it has that version; or the slot travels with it.

        Args:
            worker: by rank.
            ticket: number of the ticket that is to be computed from it; ``NO_TICKET`` where all meet.
            index: of the slot.
            travels: whether it travels.
        """
        ...

    def pulled(self, worker: int, ticket: int) -> np.ndarray:
        """What ``worker`` computes a ticket from, this server's shard of it."""
        ...

    def settled(self, pushes: Iterable[tuple[int, int]]) -> None:
        """Gradients, by worker and ticket, have been dealt with, so what they were computed from is not needed."""
        ...

    def sent(self, index: int) -> None:
        """A slot that was to travel has left."""
        ...


class TravellingSlots:
    """A server's own memory: a slot is needed until its answers have been sent.

    Args:
        count: slots to begin with. A worker has at most one answer under way for each ticket that it may hold, so two
            more than there are of these leave a free one, as long as MPI tells at once that a message has left.
        size: elements of the shard.
        dtype: of the parameters.
        keep: whether a slot is also needed while a worker computes from what it got of it.
    """

    def __init__(self, count: int, size: int, dtype: np.dtype, keep: bool = False) -> None:
        self._slots = [aligned_zeros(size, dtype) for _ in range(count)]
        self._users = [0] * count
        self._keep = keep
        self._held: dict[tuple[int, int], int] = {}

    def reads(self, worker: int) -> bool:
        """See :class:`Slots`."""
        return False

    def __getitem__(self, index: int) -> np.ndarray:
        return self._slots[index]

    def free(self, current: int) -> int:
        """See :class:`Slots`."""
        for index, users in enumerate(self._users):
            if not users and index != current and index not in self._held.values():
                return index
        # MPI may report a send as complete only after its receiver has pushed again.
        self._slots.append(aligned_zeros(self._slots[0].size, self._slots[0].dtype))
        self._users.append(0)
        return len(self._slots) - 1

    def hold(self, worker: int, ticket: int, index: int, travels: bool) -> None:
        """See :class:`Slots`."""
        self._users[index] += travels
        if self._keep:
            self._held.pop((worker, NO_TICKET), None)
            self._held[worker, ticket] = index

    def pulled(self, worker: int, ticket: int) -> np.ndarray:
        """See :class:`Slots`."""
        return self._slots[self._held[worker, ticket]]

    def settled(self, pushes: Iterable[tuple[int, int]]) -> None:
        """See :class:`Slots`."""
        for push in pushes:
            self._held.pop(push, None)

    def sent(self, index: int) -> None:
        """See :class:`Slots`."""
        self._users[index] -= 1


class SharedSlots:
    """Vectors in the node's memory from which workers compute: each is needed until all who compute from it are done.

    A worker is done with one when every server holds its gradient, which a log entry tells; with a pipeline it may have
    two. All servers execute the same log, so
    all choose the same slot for a version without a word, and each writes its own shard into it. Workers of other nodes
    count the same, so that servers of different nodes, too, agree.

    Args:
        vectors: two more than workers may hold tickets, each the whole parameter vector.
        shard: the part of it that this server writes.
        readers: the workers of this node; to others a slot travels.
        progress: lets MPI move on, after which ``sent`` may have been called. A slot is free when its receivers have
            gone on, but MPI may tell of it later.
    """

    def __init__(
        self, vectors: list[np.ndarray], shard: slice, readers: Collection[int], progress: Callable[[], None]
    ) -> None:
        self._shards = [vector[shard] for vector in vectors]
        self._readers, self._progress = frozenset(readers), progress
        self._held: dict[tuple[int, int], int] = {}
        self._leaving: Counter[int] = Counter()

    def reads(self, worker: int) -> bool:
        """See :class:`Slots`."""
        return worker in self._readers

    def __getitem__(self, index: int) -> np.ndarray:
        return self._shards[index]

    def free(self, current: int) -> int:
        """See :class:`Slots`."""
        needed = {current, *self._held.values()}
        found = next(index for index in range(len(self._shards)) if index not in needed)
        while self._leaving[found]:
            self._progress()
        return found

    def hold(self, worker: int, ticket: int, index: int, travels: bool) -> None:
        """See :class:`Slots`."""
        self._held.pop((worker, NO_TICKET), None)
        self._held[worker, ticket] = index
        self._leaving[index] += travels

    def pulled(self, worker: int, ticket: int) -> np.ndarray:
        """See :class:`Slots`."""
        return self._shards[self._held[worker, ticket]]

    def settled(self, pushes: Iterable[tuple[int, int]]) -> None:
        """See :class:`Slots`."""
        for push in pushes:
            self._held.pop(push, None)

    def sent(self, index: int) -> None:
        """See :class:`Slots`."""
        self._leaving[index] -= 1
