"""How gradients and parameters get from rank to rank: through the memory of a node, or as MPI messages between nodes.

Headers are the same in both, and travel as messages.
"""

from __future__ import annotations

import numpy as np

from mpitrain.cluster.node_memory import NodeMemory
from mpitrain.cluster.roles import Roles
from mpitrain.cluster.world import World
from mpitrain.parameters.layout import ALIGNMENT, Layout


class SharedVectors:
    """The vectors of a run in the memory of this rank's node: gradients of each worker there, and slots of parameters.

    A worker writes its gradient where the servers of its node read it, until all have answered. Slots are described in
    ``SharedSlots``. Over a run on one node this takes 2 W + 2 vectors for W workers, 4 W + 2 with a pipeline; a node
    whose servers hold some of the shards fills those parts of the slots alone.

    Args:
        world: all ranks of the run; every one must construct this together.
        roles: who serves and who works.
        layout: of the vectors.
        depth: gradients of a worker that may be under way at once.
    """

    def __init__(self, world: World, roles: Roles, layout: Layout, depth: int = 1) -> None:
        self.servers = frozenset(roles.servers) & frozenset(world.node)
        """Servers on this node."""
        self.workers = frozenset(roles.workers) & frozenset(world.node)
        """Workers on this node."""
        self.slots: list[np.ndarray] = []
        self.gradients: dict[int, list[np.ndarray]] = {}
        """By worker; it fills its vectors in turn."""
        node = world.split_by(world.leaders[world.rank])
        if self.servers and self.workers:
            self._map(node, world, depth * len(roles.workers) + 2, layout, depth)
        node.free()

    def _map(self, node: World, world: World, count: int, layout: Layout, depth: int) -> None:
        stride = -(-layout.nbytes // ALIGNMENT) * ALIGNMENT
        first = min(self.servers)
        mine = stride * (count if world.rank == first else depth * (world.rank in self.workers))
        pieces = dict(zip(world.node, NodeMemory(node, mine).pieces, strict=True))

        def vector(rank: int, index: int) -> np.ndarray:
            start = stride * index
            return pieces[rank][start : start + layout.nbytes].view(layout.dtype)

        self.slots = [vector(first, index) for index in range(count)]
        self.gradients = {w: [vector(w, lane) for lane in range(depth)] for w in sorted(self.workers)}
