"""The sum over the ranks of one node, through memory that they share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpitrain.cluster.node_memory import NodeMemory
from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce.backend import own_slices
from mpitrain.exchange.allreduce.terms import BlockSum
from mpitrain.parameters.blocked import GIVEN_BLOCK as BLOCK
from mpitrain.parameters.layout import ALIGNMENT, Layout, aligned_zeros


class SharedAllReduce:
    """Each rank owns a slice, and sums it from where the others have put their part of it.

    A rank copies into its piece of the node's memory only the slices that others own, and reads its own part where the
    gradient lies: ``sent`` is M (N - 1) / N bytes copied and M / N summed. No MPI message carries data. Memory beside
    the gradient, over the whole node: N vectors of gradients, and two for the result or for the parameters.

    The caller's exchange of weights, between :meth:`put` and :meth:`sum`, tells each rank that all others have put.

    Args:
        world: the ranks of one node.
        layout: of the gradient.
    """

    name = "shared"

    def __init__(self, world: World, layout: Layout) -> None:
        self._world, self._dtype = world, layout.dtype
        size, rank = layout.size, world.rank
        slices = own_slices(size, world.size, layout.dtype.itemsize)
        self.own = slices[rank]
        vector = -(-layout.nbytes // ALIGNMENT) * ALIGNMENT
        # The first rank's piece also holds the two vectors that all read.
        memory = NodeMemory(world, vector * (3 if rank == 0 else 1))
        views = [piece[: layout.nbytes].view(layout.dtype) for piece in memory.pieces]
        self._pieces = views
        first = memory.pieces[0]
        self._results = tuple(first[vector * k : vector * k + layout.nbytes].view(layout.dtype) for k in (1, 2))
        self._turn = 0
        self._others = [s for r, s in enumerate(slices) if r != rank and s.start < s.stop]
        self._gradient = views[rank]
        self._block = aligned_zeros(min(BLOCK, size), layout.dtype)
        self._term = aligned_zeros(min(BLOCK, size), layout.dtype)
        self.sent = layout.nbytes

    def put(self, gradient: np.ndarray) -> None:
        """See ``Backend.put``."""
        self._gradient = gradient
        if gradient.size:
            mine = self._pieces[self._world.rank]
            for part in self._others:
                mine[part] = gradient[part]

    def sum(self, used: Sequence[bool], factors: Sequence[float] | None) -> np.ndarray:
        """See ``Backend.sum``."""
        # The other result may still be read by a rank that is late; it has left it before it put again.
        self._turn ^= 1
        result = self._results[self._turn]
        blocks = self.sum_own(used, factors)
        for start in range(self.own.start, self.own.stop, BLOCK):
            stop = min(start + BLOCK, self.own.stop)
            result[start:stop] = blocks(start - self.own.start, stop - self.own.start)
        self._world.meet_closely("all-reduce")
        return result

    def sum_own(self, used: Sequence[bool], factors: Sequence[float] | None) -> BlockSum:
        """See ``OwningBackend.sum_own``."""
        sources = [
            (self._gradient if r == self._world.rank else piece)[self.own]
            for r, piece in enumerate(self._pieces)
            if used[r]
        ]
        weights = None if factors is None else [self._dtype.type(f) for r, f in enumerate(factors) if used[r]]
        return BlockSum(sources, weights, self._block, self._term)

    def publish(self, parameters: np.ndarray) -> None:
        """See ``OwningBackend.publish``."""
        self._world.meet_closely("all-reduce")

    def buffers(self) -> tuple[np.ndarray, np.ndarray]:
        """See ``OwningBackend.buffers``: both lie in the node's memory, where each owner writes for all."""
        return self._results  # type: ignore[return-value]

    def close(self) -> None:
        """The memory goes when nobody reads it any more."""
