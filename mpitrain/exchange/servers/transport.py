"""How gradients and parameters get from rank to rank: as MPI messages, or through the memory of one node.

Headers are the same in both, and travel as messages.
"""

from __future__ import annotations

import numpy as np

from mpitrain.cluster.node_memory import NodeMemory
from mpitrain.cluster.roles import Roles
from mpitrain.cluster.world import World
from mpitrain.parameters.layout import ALIGNMENT, Layout


class SharedVectors:
    """The vectors of a run in the memory of its only node: one gradient of each worker, and slots of parameters.

    A worker writes its gradient where the servers read it, until all have answered. Slots are described in
    ``SharedSlots``. Over the whole node this takes 2 W + 2 vectors for W workers.

    Args:
        world: all ranks of the run, on one node; every one must construct this together.
        roles: who serves and who works.
        layout: of the vectors.
    """

    def __init__(self, world: World, roles: Roles, layout: Layout) -> None:
        stride = -(-layout.nbytes // ALIGNMENT) * ALIGNMENT
        first, count = roles.servers[0], len(roles.workers) + 2
        mine = stride * (count if world.rank == first else roles.works(world.rank))
        pieces = NodeMemory(world, mine).pieces

        def vector(rank: int, index: int) -> np.ndarray:
            start = stride * index
            return pieces[rank][start : start + layout.nbytes].view(layout.dtype)

        self.slots = [vector(first, index) for index in range(count)]
        self.gradients = {worker: vector(worker, 0) for worker in roles.workers}
