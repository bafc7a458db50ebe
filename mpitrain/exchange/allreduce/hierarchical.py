"""The sum over the ranks of several nodes: through memory within each, around rings between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpitrain.cluster.node_memory import NodeMemory
from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce.backend import own_slices
from mpitrain.exchange.allreduce.messages import CHUNK, Messages
from mpitrain.exchange.allreduce.ring import Ring
from mpitrain.exchange.allreduce.terms import BlockSum, Computed
from mpitrain.exchange.allreduce.wire import Wire, WireOverflowError, has_overflowed
from mpitrain.parameters.blocked import GIVEN_BLOCK as BLOCK
from mpitrain.parameters.blocked import Blocks
from mpitrain.parameters.layout import ALIGNMENT, Layout, aligned_zeros


def lanes_of(leaders: Sequence[int]) -> list[int | None]:
    """The lane of each rank: the k-th rank of each node is in lane k, as far as all nodes have one; else None.

    Args:
        leaders: the lowest rank on each rank's node.
    """
    places = [leaders[:rank].count(leader) for rank, leader in enumerate(leaders)]
    lanes = min(leaders.count(leader) for leader in leaders)
    return [place if place < lanes else None for place in places]


def own_of_lanes(lanes: Sequence[int | None], size: int, itemsize: int) -> list[slice]:
    """Each rank's slice, in rank order; empty for a rank without a lane."""
    cut = iter(own_slices(size, sum(lane is not None for lane in lanes), itemsize))
    slices, border = [], 0
    for lane in lanes:
        own = slice(border, border) if lane is None else next(cut)
        slices.append(own)
        border = own.stop
    return slices


class HierarchicalAllReduce:
    """Ranks of the same place on each node make a ring of their own, so that all of a node's links are used.

    Such a lane sums one slice for each of its ranks: of these a rank adds up what its node has, from where the others
    copied it into the node's memory, while it goes round the ring. Where a node has more ranks than another, those
    beyond lead no lane. Over all ranks N M bytes are written into memory, and 2 (K - 1) M travel between K nodes, half
    of it with a wire of 16 bits. Memory beside the gradient: for each node a vector for each rank, and two for the
    result or for the parameters; and for each rank the lane's part of one vector.

    Args:
        world: the ranks that reduce, on several nodes.
        layout: of the gradient.
        wire: how gradients travel between nodes; parameters always travel whole.
    """

    name = "hierarchical"

    def __init__(self, world: World, layout: Layout, wire: str = "float32") -> None:
        self._world, self._dtype, size = world, layout.dtype, layout.size
        lanes = lanes_of(world.leaders)
        slices = own_of_lanes(lanes, size, layout.dtype.itemsize)
        self.own, lane = slices[world.rank], lanes[world.rank]
        self._node = world.split_by(world.leaders[world.rank])
        self._lane = world.split_by(world.size if lane is None else lane)
        parts = [part for part, other in zip(slices, lanes, strict=True) if other == lane]
        self._wire = Wire(wire, layout.dtype)
        self._ring = Ring(self._lane, parts, self._wire) if lane is not None else None
        self._plain = Ring(self._lane, parts, Wire("float32", layout.dtype)) if lane is not None else None
        self._flags = Messages(world)
        vector = -(-layout.nbytes // ALIGNMENT) * ALIGNMENT
        # The first rank's piece also holds the two vectors that all of the node read.
        memory = NodeMemory(self._node, vector * (3 if self._node.rank == 0 else 1))
        self._pieces = [piece[: layout.nbytes].view(layout.dtype) for piece in memory.pieces]
        first = memory.pieces[0]
        self._results = tuple(first[vector * k : vector * k + layout.nbytes].view(layout.dtype) for k in (1, 2))
        self._turn = 0
        self._others = [
            part
            for part, other in zip(slices, lanes, strict=True)
            if other is not None and other != lane and part.start < part.stop
        ]
        self._sums = None if lane is None else aligned_zeros(size, layout.dtype)
        """Only the lane's parts of it are ever touched, and take memory."""
        self._carrier = aligned_zeros(size, self._wire.dtype) if self._wire.narrow and lane is not None else None
        self._scratch = aligned_zeros(min(CHUNK, size), layout.dtype)
        self._block = aligned_zeros(min(BLOCK, size), layout.dtype)
        self._term = aligned_zeros(min(BLOCK, size), layout.dtype)
        self._gradient = self._pieces[self._node.rank]
        self._nbytes = layout.nbytes

    @property
    def sent(self) -> int:
        """See ``Backend.sent``."""
        rings = [ring for ring in (self._ring, self._plain) if ring is not None]
        return self._nbytes + sum(ring.messages.sent for ring in rings)

    def put(self, gradient: np.ndarray) -> None:
        """See ``Backend.put``."""
        self._gradient = gradient
        if gradient.size:
            mine = self._pieces[self._node.rank]
            for part in self._others:
                mine[part] = gradient[part]

    def sum(self, used: Sequence[bool], factors: Sequence[float] | None) -> np.ndarray:
        """See ``Backend.sum``."""
        # The other result may still be read by a rank that is late; it has left it before it put again.
        self._turn ^= 1
        result: np.ndarray = self._results[self._turn]
        self._reduce(used, factors, result)
        if self._ring is not None:
            self._ring.all_gather(result, result if self._carrier is None else self._carrier)
        self._node.meet_closely("all-reduce")
        return result

    def sum_own(self, used: Sequence[bool], factors: Sequence[float] | None) -> Blocks:
        """See ``OwningBackend.sum_own``."""
        self._reduce(used, factors, self._sums)
        own = self._block[:0] if self._sums is None else self._sums[self.own]
        return lambda start, stop: own[start:stop]

    def publish(self, parameters: np.ndarray) -> None:
        """See ``OwningBackend.publish``."""
        if self._plain is not None:
            self._plain.all_gather(parameters, parameters)
        self._node.meet_closely("all-reduce")

    def buffers(self) -> tuple[np.ndarray, np.ndarray]:
        """See ``OwningBackend.buffers``: both lie in the node's memory, where each owner writes for all."""
        return self._results  # type: ignore[return-value]

    def close(self) -> None:
        """Give the communicators back; the memory goes when nobody reads it any more."""
        self._lane.free()
        self._node.free()

    def _reduce(self, used: Sequence[bool], factors: Sequence[float] | None, out: np.ndarray | None) -> None:
        overflowed = False
        if self._ring is not None and self._plain is not None and out is not None:
            self._ring.messages.sent = self._plain.messages.sent = 0
            term = Computed(self._node_sum(used, factors))
            self._ring.reduce_scatter(term, out, out if self._carrier is None else self._carrier, self._scratch)
            overflowed = self._wire.narrow and has_overflowed(out[self.own])
        if self._wire.narrow and self._flags.any(overflowed):
            raise WireOverflowError

    def _node_sum(self, used: Sequence[bool], factors: Sequence[float] | None) -> BlockSum | None:
        near = [(place, rank) for place, rank in enumerate(self._world.node) if used[rank]]
        if not near:
            return None
        sources = [self._gradient if rank == self._world.rank else self._pieces[place] for place, rank in near]
        weights = None if factors is None else [self._dtype.type(factors[rank]) for _, rank in near]
        return BlockSum(sources, weights, self._block, self._term)
