"""The ranks of a run: their communicator, and what is known of their nodes."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mpitrain.cluster.cores import visible_cores
from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.waiting import complete, idle, now, waiting

MAX_COUNT = 2**31 - 1
"""The largest number of elements in one MPI message."""


@dataclass(frozen=True, eq=False)
class World:
    """The ranks of a run on a communicator of their own.

    Args:
        comm: a duplicate that nobody else uses.
        hosts: host name of each rank.
        leaders: the lowest rank on each rank's node (the ranks of a node share memory).
        masks: the visible cores of each rank of this rank's node.
        origin: each rank's number in the whole job.
    """

    comm: MPI.Intracomm
    hosts: tuple[str, ...]
    leaders: tuple[int, ...]
    masks: tuple[frozenset[int], ...]
    origin: tuple[int, ...]

    @classmethod
    def of(cls, comm: MPI.Comm) -> World:
        """Duplicate ``comm`` and find out which of its ranks share a node."""
        with waiting("making a communicator", 0):
            own = MPI.Intracomm(comm.Dup())
            shared = own.Split_type(MPI.COMM_TYPE_SHARED)
            near = shared.allgather((own.rank, visible_cores()))
            shared.Free()
            table = own.allgather((socket.gethostname(), near[0][0], MPI.COMM_WORLD.rank))
        hosts, leaders, origin = (tuple(column) for column in zip(*table, strict=True))
        return cls(own, hosts, leaders, tuple(mask for _, mask in near), origin)

    @property
    def rank(self) -> int:
        """This process."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.comm.size

    @cached_property
    def node(self) -> tuple[int, ...]:
        """The ranks on this rank's node."""
        return tuple(r for r, leader in enumerate(self.leaders) if leader == self.leaders[self.rank])

    @cached_property
    def crowded(self) -> bool:
        """Whether the ranks of this node outnumber its visible cores, so that a wait must sleep."""
        return len(self.node) > len(frozenset.union(*self.masks))

    def name(self, rank: int) -> str:
        """A rank for people: with its host where there are several."""
        return f"rank {rank} on {self.hosts[rank]}" if len(set(self.hosts)) > 1 else f"rank {rank}"

    def split(self, ranks: Sequence[int]) -> World | None:
        """A world of ``ranks`` alone, in that order; None on the others. Every rank must call it."""
        member = self.rank in ranks
        comm = self.comm.Split(0 if member else MPI.UNDEFINED, ranks.index(self.rank) if member else 0)
        if not member:
            return None
        world = World.of(comm)
        comm.Free()
        return world

    @cached_property
    def others(self) -> tuple[int, ...]:
        """The other ranks, by their number in the whole job."""
        return tuple(r for r in self.origin if r != self.origin[self.rank])

    def split_by(self, color: int) -> World:
        """A world of the ranks that give the same ``color``, in their order here. Every rank must call it."""
        comm = self.comm.Split(color, self.rank)
        world = World.of(comm)
        comm.Free()
        return world

    def meet(self, operation: str, step: int = 0) -> None:
        """Return when every rank has come here; where ranks outnumber cores, sleep until then."""
        with waiting(operation, step, self.others):
            idle([self.comm.Ibarrier()], self.crowded)

    def meet_closely(self, operation: str) -> None:
        """Like :meth:`meet`, where all come at nearly the same time."""
        with waiting(operation, now.step, self.others):
            complete(self.comm.Ibarrier(), self.crowded)

    def gather_all(self, value: Any, operation: str, step: int = 0) -> list[Any]:
        """Every rank's (small) object, in rank order, on every rank; not for the hot path."""
        self.meet(operation, step)
        with waiting(operation, step, self.others):
            return list(self.comm.allgather(value))

    def gather_to(self, value: Any, root: int, operation: str, step: int = 0) -> list[Any] | None:
        """Every rank's object, in rank order, on ``root`` alone; None elsewhere."""
        self.meet(operation, step)
        with waiting(operation, step, self.others):
            return self.comm.gather(value, root)

    def share(self, value: Any, root: int, operation: str, step: int = 0) -> Any:
        """``root``'s object on every rank; not for the hot path."""
        self.meet(operation, step)
        with waiting(operation, step, self.others):
            return self.comm.bcast(value, root)

    def sum_all(self, values: np.ndarray, operation: str, step: int = 0) -> np.ndarray:
        """The sum over ranks, added in rank order, of float64 ``values``, the same bits on every rank."""
        table = np.empty((self.size, values.size))
        self.meet(operation, step)
        with waiting(operation, step, self.others):
            self.comm.Allgather(np.ascontiguousarray(values, np.float64), table)
        return table.sum(axis=0)

    def free(self) -> None:
        """Give the communicator back; every rank must call it."""
        self.comm.Free()
