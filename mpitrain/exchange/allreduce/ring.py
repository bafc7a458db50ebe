"""The sum over all ranks around a ring: each rank talks to its two neighbours alone.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib.
Comput. 69, 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce.backend import own_slices
from mpitrain.exchange.allreduce.messages import CHUNK, Messages, chunks
from mpitrain.exchange.allreduce.terms import Scaled, Term
from mpitrain.exchange.allreduce.wire import Wire, WireOverflowError, has_overflowed
from mpitrain.parameters.blocked import Blocks
from mpitrain.parameters.layout import Layout, aligned_zeros

_AHEAD = 8  # receives that wait for messages not yet due


class Ring:
    """Reduce-scatter and all-gather of vectors that are cut into one part for each rank of a ring.

    In the reduce-scatter part ``k`` travels from rank ``k + 1`` all the way round to rank ``k``, and each rank on its
    way adds its own term: the order of addition is that of the ring. In the all-gather it travels once more. Chunks
    follow each other, so that a rank adds one while others are on the wire.

    Args:
        world: the ranks, in the order of the ring.
        parts: one slice for each; that of ``world.rank`` is summed here.
        wire: how elements travel.
    """

    def __init__(self, world: World, parts: Sequence[slice], wire: Wire) -> None:
        rank, size = world.rank, world.size
        self._right, self._left, self._ranks = (rank + 1) % size, (rank - 1) % size, size
        self.messages = Messages(world)
        self._wire = wire
        self.own = parts[rank]
        cut = [chunks(part) for part in parts]
        # What a rank receives it sends on, but for what ends with it.
        self._begun = cut[rank - 1]
        self._partial = [c for k in range(2, size) for c in cut[(rank - k) % size]]
        self._own = cut[rank]
        self._whole = [c for k in range(1, size) for c in cut[(rank - k) % size]]
        self._last = cut[(rank + 1) % size]

    def reduce_scatter(self, term: Term, out: np.ndarray, carrier: np.ndarray, scratch: np.ndarray) -> None:
        """Sum this rank's part into ``out``.

        Args:
            term: this rank's.
            out: a whole vector, of which other parts are overwritten where they carry sums on their way.
            carrier: where sums lie while they travel: ``out`` itself, or with a narrow wire a vector of its type.
            scratch: of ``CHUNK`` elements of ``out``'s type.
        """
        if self._ranks == 1:
            term.write(self.own, out[self.own])
            return
        with np.errstate(invalid="ignore"):  # infinity less infinity, where a narrow wire has overflowed
            self._pass_on(term, out, carrier, scratch)

    def _pass_on(self, term: Term, out: np.ndarray, carrier: np.ndarray, scratch: np.ndarray) -> None:
        messages, wire = self.messages, self._wire
        coming = self._partial + self._own
        receives = [messages.receive(wire.bare(carrier[part]), self._left) for part in coming]
        sends = [self._begin(part, term, carrier, scratch) for part in self._begun]
        onward = len(self._partial)
        for k, (part, receive) in enumerate(zip(coming, receives, strict=True)):
            messages.wait(receive)
            if not wire.narrow:
                term.add(part, carrier[part])
            else:
                total = scratch[: part.stop - part.start]
                wire.decode(carrier[part], total)
                term.add(part, total)
                wire.encode(total, carrier[part])
            if k < onward:
                sends.append(messages.send(wire.bare(carrier[part]), self._right))
            elif wire.narrow:
                wire.decode(carrier[part], out[part])
        messages.wait_all(sends)

    def all_gather(self, vector: np.ndarray, carrier: np.ndarray) -> None:
        """Give every rank the part of ``vector`` that each rank has.

        Args:
            vector: whole; this rank's part is read, the others are written.
            carrier: ``vector`` itself, or where the parts lie narrowed, this rank's already.
        """
        messages, bare = self.messages, self._wire.bare
        sends = [messages.send(bare(carrier[part]), self._right) for part in (self._own if self._ranks > 1 else ())]
        onward = len(self._whole) - len(self._last)
        receives: list[MPI.Request] = []
        for k, part in enumerate(self._whole):
            for late in self._whole[len(receives) : k + _AHEAD]:
                receives.append(messages.receive(bare(carrier[late]), self._left))
            messages.wait(receives[k])
            if k < onward:
                sends.append(messages.send(bare(carrier[part]), self._right))
            if carrier is not vector:
                self._wire.decode(carrier[part], vector[part])
        messages.wait_all(sends)

    def _begin(self, part: slice, term: Term, carrier: np.ndarray, scratch: np.ndarray) -> MPI.Request:
        wire = self._wire
        lying = term.lying(part)
        if wire.narrow:
            if lying is None:
                lying = scratch[: part.stop - part.start]
                term.write(part, lying)
            wire.encode(lying, carrier[part])
        elif lying is not None:
            return self.messages.send(lying, self._right)
        else:
            term.write(part, carrier[part])
        return self.messages.send(wire.bare(carrier[part]), self._right)


class RingAllReduce:
    """A ring of all ranks.

    Over all ranks exactly 2 (N - 1) M bytes travel (half of it with a wire of 16 bits), each rank's share equal to
    within 64 bytes a hop. Memory beside the gradient: one vector, with a narrow wire one and a half; and a few chunks.

    Args:
        world: the ranks that reduce.
        layout: of the gradient.
        wire: how gradients travel; parameters always travel whole.
    """

    name = "ring"

    def __init__(self, world: World, layout: Layout, wire: str = "float32") -> None:
        self._rank, self._dtype = world.rank, layout.dtype
        parts = own_slices(layout.size, world.size, layout.dtype.itemsize)
        self.own = parts[world.rank]
        self._wire = Wire(wire, layout.dtype)
        self._ring = Ring(world, parts, self._wire)
        self._plain = self._ring if not self._wire.narrow else Ring(world, parts, Wire("float32", layout.dtype))
        self._sum = aligned_zeros(layout.size, layout.dtype)
        self._carrier = aligned_zeros(layout.size, self._wire.dtype) if self._wire.narrow else self._sum
        self._scratch, self._product = (aligned_zeros(min(CHUNK, layout.size), layout.dtype) for _ in range(2))
        self._gradient = self._sum

    @property
    def sent(self) -> int:
        """See ``Backend.sent``."""
        return self._ring.messages.sent + (self._plain.messages.sent if self._plain is not self._ring else 0)

    def put(self, gradient: np.ndarray) -> None:
        """See ``Backend.put``."""
        self._gradient = gradient

    def sum(self, used: Sequence[bool], factors: Sequence[float] | None) -> np.ndarray:
        """See ``Backend.sum``."""
        self._reduce(used, factors)
        self._ring.all_gather(self._sum, self._carrier)
        return self._sum

    def sum_own(self, used: Sequence[bool], factors: Sequence[float] | None) -> Blocks:
        """See ``OwningBackend.sum_own``."""
        self._reduce(used, factors)
        own = self._sum[self.own]
        return lambda start, stop: own[start:stop]

    def publish(self, parameters: np.ndarray) -> None:
        """See ``OwningBackend.publish``."""
        self._plain.all_gather(parameters, parameters)

    def buffers(self) -> tuple[np.ndarray, np.ndarray]:
        """See ``OwningBackend.buffers``: one and the same, as no other rank reads it."""
        vector = aligned_zeros(self._sum.size, self._dtype)
        return vector, vector

    def close(self) -> None:
        """Nothing is held."""

    def _reduce(self, used: Sequence[bool], factors: Sequence[float] | None) -> None:
        self._ring.messages.sent = self._plain.messages.sent = 0
        factor = None if factors is None else self._dtype.type(factors[self._rank])
        term = Scaled(self._gradient if used[self._rank] else None, factor, self._product)
        self._ring.reduce_scatter(term, self._sum, self._carrier, self._scratch)
        if self._wire.narrow and self._ring.messages.any(has_overflowed(self._sum[self.own])):
            raise WireOverflowError
