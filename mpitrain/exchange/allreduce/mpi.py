"""The sum over all ranks by the MPI library's own all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.world import MAX_COUNT, World
from mpitrain.parameters.layout import Layout, aligned_zeros


class MpiAllReduce:
    """``MPI_Allreduce`` from the gradient, where the step left it, into one buffer of this object.

    MPI chooses the algorithm and does not tell what it sends; ``sent`` states the least that any algorithm can,
    2 (N - 1) / N of the vector for each rank (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009). Memory beside
    the gradient: one vector, and a second once a gradient needed a factor.

    Args:
        world: the ranks that reduce.
        layout: of the gradient.
    """

    name = "mpi"

    def __init__(self, world: World, layout: Layout) -> None:
        self._comm = world.comm
        self._sum = aligned_zeros(layout.size, layout.dtype)
        self._scaled: np.ndarray | None = None
        self._gradient = self._sum
        self.sent = 2 * (world.size - 1) * layout.nbytes // world.size

    def put(self, gradient: np.ndarray) -> None:
        """See ``Backend.put``."""
        self._gradient = gradient

    def sum(self, used: Sequence[bool], factors: Sequence[float] | None) -> np.ndarray:
        """See ``Backend.sum``."""
        mine = self._mine(used[self._comm.rank], None if factors is None else factors[self._comm.rank])
        if self._comm.size == 1:
            return mine
        for low in range(0, mine.size, MAX_COUNT):
            part = slice(low, low + MAX_COUNT)
            self._comm.Allreduce(mine[part], self._sum[part], MPI.SUM)
        return self._sum

    def close(self) -> None:
        """Nothing is held."""

    def _mine(self, used: bool, factor: float | None) -> np.ndarray:
        if used and factor is None:
            return self._gradient
        if self._scaled is None:
            self._scaled = aligned_zeros(self._sum.size, self._sum.dtype)
        if not used:
            self._scaled[:] = 0
            return self._scaled
        return np.multiply(self._gradient, self._sum.dtype.type(factor), out=self._scaled)
