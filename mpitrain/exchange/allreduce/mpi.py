"""The sum over all ranks by the MPI library's own all-reduce."""

from __future__ import annotations

import numpy as np

from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.world import MAX_COUNT, World
from mpitrain.parameters.layout import Layout, aligned_zeros


class MpiAllReduce:
    """``MPI_Allreduce`` from the gradient, where the step left it, into one buffer of this object.

    MPI chooses the algorithm and does not tell what it sends; ``bytes_sent`` states the least that any algorithm can,
    2 (N - 1) / N of the vector for each rank (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009).

    Args:
        world: the ranks that reduce.
        layout: of the gradient.
    """

    name = "mpi"

    def __init__(self, world: World, layout: Layout) -> None:
        self._comm = world.comm
        self._sum = aligned_zeros(layout.size, layout.dtype)
        self.bytes_sent = 2 * (world.size - 1) * layout.nbytes // world.size

    def sum(self, gradient: np.ndarray) -> np.ndarray:
        """The sum over ranks of ``gradient`` (read only); valid until the next call."""
        if self._comm.size == 1:
            return gradient
        for low in range(0, gradient.size, MAX_COUNT):
            part = slice(low, low + MAX_COUNT)
            self._comm.Allreduce(gradient[part], self._sum[part], MPI.SUM)
        return self._sum
