"""The MPI world of a run: starting and ending MPI, and the communicator with what is known of its nodes."""

from __future__ import annotations

import atexit
import faulthandler
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mpitrain.cluster import launcher
from mpitrain.cluster.cores import visible_cores
from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.waiting import idle, waiting

MAX_COUNT = 2**31 - 1
"""The largest number of elements in one MPI message."""


def start_mpi(timeout: float = 300.0) -> World:
    """Start MPI, unless it runs already, and return the world on a communicator of its own.

    Args:
        timeout: seconds after which a rank that is stuck in ``MPI_Init`` prints its stack and exits.

    Raises:
        InputError: where the launcher and the MPI library do not belong together.
    """
    launch = launcher.read_launch()
    if not MPI.Is_initialized():
        launcher.check_library(launch, MPI.Get_library_version())
        launcher.skip_network_probes(launch, MPI.Get_library_version())
        faulthandler.dump_traceback_later(timeout, exit=True)
        MPI.Init_thread(MPI.THREAD_SERIALIZED)
        faulthandler.cancel_dump_traceback_later()
        # A user's script that made a trainer ends without a word of MPI.
        atexit.register(stop_mpi)
    launcher.check_size(launch, MPI.COMM_WORLD.size)
    return World.of(MPI.COMM_WORLD)


def stop_mpi(timeout: float = 60.0) -> None:
    """End MPI, if it runs; a rank that is stuck in ``MPI_Finalize`` exits after ``timeout`` seconds."""
    if MPI.Is_initialized() and not MPI.Is_finalized():
        faulthandler.dump_traceback_later(timeout, exit=True)
        MPI.Finalize()
        faulthandler.cancel_dump_traceback_later()


@dataclass(frozen=True, eq=False)
class World:
    """The ranks of a run on a communicator of their own.

    Args:
        comm: a duplicate that nobody else uses.
        hosts: host name of each rank.
        node: the ranks on this rank's node (they share memory).
        masks: the visible cores of each rank of ``node``.
    """

    comm: MPI.Intracomm
    hosts: tuple[str, ...]
    node: tuple[int, ...]
    masks: tuple[frozenset[int], ...]

    @classmethod
    def of(cls, comm: MPI.Comm) -> World:
        """Duplicate ``comm`` and find out which of its ranks share a node."""
        own = MPI.Intracomm(comm.Dup())
        shared = own.Split_type(MPI.COMM_TYPE_SHARED)
        near = shared.allgather((own.rank, visible_cores()))
        shared.Free()
        hosts = tuple(own.allgather(socket.gethostname()))
        return cls(own, hosts, tuple(r for r, _ in near), tuple(m for _, m in near))

    @property
    def rank(self) -> int:
        """This process."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.comm.size

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

    def meet(self, operation: str, step: int = 0) -> None:
        """Return when every rank has come here; where ranks outnumber cores, sleep until then."""
        with waiting(operation, step, [r for r in range(self.size) if r != self.rank]):
            idle([self.comm.Ibarrier()], self.crowded)

    def gather_all(self, value: Any, operation: str, step: int = 0) -> list[Any]:
        """Every rank's (small) object, in rank order, on every rank; not for the hot path."""
        self.meet(operation, step)
        return list(self.comm.allgather(value))

    def share(self, value: Any, root: int, operation: str, step: int = 0) -> Any:
        """``root``'s object on every rank; not for the hot path."""
        self.meet(operation, step)
        return self.comm.bcast(value, root)

    def sum_all(self, values: np.ndarray, operation: str, step: int = 0) -> np.ndarray:
        """The sum over ranks, added in rank order, of float64 ``values``, the same bits on every rank."""
        table = np.empty((self.size, values.size))
        self.meet(operation, step)
        self.comm.Allgather(np.ascontiguousarray(values, np.float64), table)
        return table.sum(axis=0)

    def free(self) -> None:
        """Give the communicator back; every rank must call it."""
        self.comm.Free()
