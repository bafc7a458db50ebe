"""The back ends by name, and which of them can be used where."""

from __future__ import annotations

from dataclasses import dataclass

from mpitrain.cluster.world import World
from mpitrain.errors import InputError
from mpitrain.exchange.allreduce.backend import Backend
from mpitrain.exchange.allreduce.horovod import HorovodAllReduce, why_not
from mpitrain.exchange.allreduce.mpi import MpiAllReduce
from mpitrain.exchange.allreduce.shared import SharedAllReduce
from mpitrain.parameters.layout import Layout

BACKENDS: dict[str, type] = {backend.name: backend for backend in (MpiAllReduce, SharedAllReduce, HorovodAllReduce)}

AUTO = ("shared", "mpi")
"""What ``--allreduce auto`` measures, where it can be used; the first wins a draw."""


@dataclass(frozen=True)
class AllReduceChoice:
    """How gradients are summed.

    Args:
        backend: a key of ``BACKENDS``.
        owners_update: whether each rank applies the optimizer to its own slice alone.
    """

    backend: str = "mpi"
    owners_update: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.backend}, {'each rank updates its slice' if self.owners_update else 'all update everything'}"


def usable(name: str, world: World) -> str:
    """Why a back end cannot be used on these ranks; empty where it can. Every rank must call this together."""
    if name == "shared" and len(world.node) < world.size:
        return "the ranks are on several hosts, which share no memory"
    if name == "horovod":
        # It may be installed on some hosts only.
        reasons = enumerate(world.gather_all(why_not(), "looking for Horovod"))
        return next((f"{world.name(rank)}: {why}" if rank else why for rank, why in reasons if why), "")
    return ""


def open_backend(name: str, world: World, layout: Layout) -> Backend:
    """A back end for vectors of ``layout``; every rank must call this together.

    Raises:
        InputError: where it cannot be used on these ranks.
    """
    if why := usable(name, world):
        raise InputError(f"--allreduce {name} cannot be used here: {why}; use --allreduce auto")
    backend: Backend = BACKENDS[name](world, layout)
    return backend
