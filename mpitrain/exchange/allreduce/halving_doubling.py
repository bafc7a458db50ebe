"""The sum over all ranks in few steps: recursive halving, then recursive doubling.

Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce.backend import own_slices
from mpitrain.exchange.allreduce.messages import CHUNK, Messages, chunks
from mpitrain.exchange.allreduce.terms import Scaled, Term
from mpitrain.exchange.allreduce.wire import Wire, WireOverflowError, has_overflowed
from mpitrain.parameters.blocked import Blocks
from mpitrain.parameters.layout import Layout, aligned_zeros

_SLOTS = 4  # chunks of the partner's that may arrive before they are added


@dataclass(frozen=True)
class Halving:
    """One step of a rank: it and ``partner`` halve what both have summed.

    Args:
        partner: the other rank.
        keep: slice that this rank sums on.
        give: slice that the partner sums on.
    """

    partner: int
    keep: slice
    give: slice


@dataclass(frozen=True)
class Schedule:
    """What one rank does.

    Where the number of ranks is no power of two, each of the first ranks of even number takes the whole vector of the
    next rank in at first, and gives it the result at last.

    Args:
        folds_into: the rank that works for this one, if any.
        stands_for: the rank that this one works for too, if any.
        steps: of a rank that is not folded into another.
        own: what is summed here in the end; empty where another works for this rank.
    """

    folds_into: int | None
    stands_for: int | None
    steps: tuple[Halving, ...]
    own: slice


def schedule(rank: int, ranks: int, size: int, itemsize: int) -> Schedule:
    """The steps of one rank of ``ranks`` for vectors of ``size`` elements; the own slices follow the ranks."""
    working = 1 << (ranks.bit_length() - 1)
    folded = 2 * (ranks - working)
    slices = own_slices(size, working, itemsize)
    place = rank // 2 if rank < folded else rank - folded // 2
    if rank < folded and rank % 2:
        border = slices[place].stop
        return Schedule(rank - 1, None, (), slice(border, border))
    low, high = 0, working
    steps = []
    while high - low > 1:
        middle = (low + high) // 2
        lower = slice(slices[low].start, slices[middle].start)
        upper = slice(lower.stop, slices[high - 1].stop)
        other = place + (high - low) // 2 * (1 if place < middle else -1)
        partner = 2 * other if 2 * other < folded else other + folded // 2
        if place < middle:
            high = middle
            steps.append(Halving(partner, lower, upper))
        else:
            low = middle
            steps.append(Halving(partner, upper, lower))
    return Schedule(None, rank + 1 if rank < folded else None, tuple(steps), slices[place])


class HalvingDoublingAllReduce:
    """Halving and doubling: about 2 log2(N) messages one after another, where a ring has 2 (N - 1).

    Over all ranks exactly 2 (N - 1) M bytes travel, half of it with a wire of 16 bits. Memory beside the gradient: one
    vector, with a narrow wire one and a half; and a few chunks.

    Args:
        world: the ranks that reduce.
        layout: of the gradient.
        wire: how gradients travel; parameters always travel whole.
    """

    name = "halving-doubling"

    def __init__(self, world: World, layout: Layout, wire: str = "float32") -> None:
        self._rank, self._dtype = world.rank, layout.dtype
        self._plan = schedule(world.rank, world.size, layout.size, layout.dtype.itemsize)
        self.own = self._plan.own
        self._all = slice(0, layout.size)
        self._messages = Messages(world)
        self._wire, self._plain = Wire(wire, layout.dtype), Wire("float32", layout.dtype)
        self._sum = aligned_zeros(layout.size, layout.dtype)
        self._carrier = aligned_zeros(layout.size, self._wire.dtype) if self._wire.narrow else self._sum
        chunk = min(CHUNK, layout.size)
        self._slots = [aligned_zeros(chunk, self._wire.dtype) for _ in range(_SLOTS)]
        self._scratch = aligned_zeros(chunk, layout.dtype)
        self._gradient = self._sum

    @property
    def sent(self) -> int:
        """See ``Backend.sent``."""
        return self._messages.sent

    def put(self, gradient: np.ndarray) -> None:
        """See ``Backend.put``."""
        self._gradient = gradient

    def sum(self, used: Sequence[bool], factors: Sequence[float] | None) -> np.ndarray:
        """See ``Backend.sum``."""
        self._reduce(used, factors)
        self._double(self._sum, self._carrier, self._wire)
        return self._sum

    def sum_own(self, used: Sequence[bool], factors: Sequence[float] | None) -> Blocks:
        """See ``OwningBackend.sum_own``."""
        self._reduce(used, factors)
        own = self._sum[self.own]
        return lambda start, stop: own[start:stop]

    def publish(self, parameters: np.ndarray) -> None:
        """See ``OwningBackend.publish``."""
        self._double(parameters, parameters, self._plain)

    def buffers(self) -> tuple[np.ndarray, np.ndarray]:
        """See ``OwningBackend.buffers``: one and the same, as no other rank reads it."""
        vector = aligned_zeros(self._sum.size, self._dtype)
        return vector, vector

    def close(self) -> None:
        """Nothing is held."""

    def _reduce(self, used: Sequence[bool], factors: Sequence[float] | None) -> None:
        self._messages.sent = 0
        factor = None if factors is None else self._dtype.type(factors[self._rank])
        term = Scaled(self._gradient if used[self._rank] else None, factor, self._scratch)
        with np.errstate(invalid="ignore"):  # infinity less infinity, where a narrow wire has overflowed
            self._halve(term)
        if self._wire.narrow and self._messages.any(has_overflowed(self._sum[self.own])):
            raise WireOverflowError

    def _halve(self, term: Term) -> None:
        plan, messages, total, wire = self._plan, self._messages, self._sum, self._wire
        sends: list[MPI.Request] = []
        if plan.folds_into is not None:
            sends += [self._send(part, term, plan.folds_into) for part in chunks(self._all)]
        elif plan.stands_for is not None:
            for part, values in self._received(self._all, plan.stands_for):
                np.copyto(total[part], values)
                term.add(part, total[part])
            term = Scaled(total, None, self._scratch)
        for step in plan.steps:
            sends += [self._send(part, term, step.partner) for part in chunks(step.give)]
            for part, values in self._received(step.keep, step.partner):
                if step is plan.steps[0] and plan.stands_for is None:
                    term.write(part, total[part])
                np.add(total[part], values, total[part])
            term = Scaled(total, None, self._scratch)
        if plan.folds_into is None and not plan.steps and plan.stands_for is None:
            term.write(self._all, total)
        messages.wait_all(sends)
        if wire.narrow and (plan.steps or plan.stands_for is not None):
            wire.encode(total[self.own], self._carrier[self.own])
            wire.decode(self._carrier[self.own], total[self.own])

    def _double(self, vector: np.ndarray, carrier: np.ndarray, wire: Wire) -> None:
        """Collect what was summed, widening from this rank's own slice, the steps backwards."""
        plan, messages = self._plan, self._messages
        sends: list[MPI.Request] = []

        def collect(part: slice, rank: int) -> None:
            receives = [(c, messages.receive(wire.bare(carrier[c]), rank)) for c in chunks(part)]
            for chunk, receive in receives:
                messages.wait(receive)
                if carrier is not vector:
                    wire.decode(carrier[chunk], vector[chunk])

        def spread(part: slice, rank: int) -> None:
            sends.extend(messages.send(wire.bare(carrier[c]), rank) for c in chunks(part))

        for step in reversed(plan.steps):
            spread(step.keep, step.partner)
            collect(step.give, step.partner)
        if plan.stands_for is not None:
            spread(self._all, plan.stands_for)
        elif plan.folds_into is not None:
            collect(self._all, plan.folds_into)
        messages.wait_all(sends)

    def _send(self, part: slice, term: Term, rank: int) -> MPI.Request:
        wire = self._wire
        values = term.lying(part)
        if values is None:
            values = self._scratch[: part.stop - part.start] if wire.narrow else self._sum[part]
            term.write(part, values)
        if wire.narrow:
            wire.encode(values, self._carrier[part])
            values = wire.bare(self._carrier[part])
        return self._messages.send(values, rank)

    def _received(self, part: slice, rank: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Each chunk that ``rank`` sends of ``part``, in the vector's own type, until the next is asked for."""
        messages, wire, todo = self._messages, self._wire, chunks(part)

        def begin(k: int) -> MPI.Request:
            slot = self._slots[k % _SLOTS][: todo[k].stop - todo[k].start]
            return messages.receive(wire.bare(slot), rank)

        receives = [begin(k) for k in range(min(_SLOTS, len(todo)))]
        for k, chunk in enumerate(todo):
            messages.wait(receives[k])
            values = self._slots[k % _SLOTS][: chunk.stop - chunk.start]
            if wire.narrow:
                decoded = self._scratch[: values.size]
                wire.decode(values, decoded)
                values = decoded
            yield chunk, values
            if k + _SLOTS < len(todo):
                receives.append(begin(k + _SLOTS))
