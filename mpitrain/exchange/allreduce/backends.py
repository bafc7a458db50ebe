"""The back ends by name, and which of them can be used where."""

from __future__ import annotations

from dataclasses import dataclass

from mpitrain.cluster.world import World
from mpitrain.errors import InputError
from mpitrain.exchange.allreduce.backend import Backend
from mpitrain.exchange.allreduce.halving_doubling import HalvingDoublingAllReduce
from mpitrain.exchange.allreduce.hierarchical import HierarchicalAllReduce
from mpitrain.exchange.allreduce.horovod import HorovodAllReduce, why_not
from mpitrain.exchange.allreduce.mpi import MpiAllReduce
from mpitrain.exchange.allreduce.ring import RingAllReduce
from mpitrain.exchange.allreduce.shared import SharedAllReduce
from mpitrain.parameters.layout import Layout

BACKENDS: dict[str, type] = {
    MpiAllReduce.name: MpiAllReduce,
    RingAllReduce.name: RingAllReduce,
    HalvingDoublingAllReduce.name: HalvingDoublingAllReduce,
    SharedAllReduce.name: SharedAllReduce,
    HierarchicalAllReduce.name: HierarchicalAllReduce,
    HorovodAllReduce.name: HorovodAllReduce,
}

NARROWING = ("ring", "halving-doubling", "hierarchical")
"""Those that can narrow elements on the wire."""


@dataclass(frozen=True)
class AllReduceChoice:
    """How gradients are summed.

    Args:
        backend: a key of ``BACKENDS``.
        owners_update: whether each rank applies the optimizer to its own slice alone.
        wire: the type in which gradients travel.
    """

    backend: str = "mpi"
    owners_update: bool = False
    wire: str = "float32"

    @property
    def name(self) -> str:
        """For people."""
        backend = self.backend if self.wire == "float32" else f"{self.backend} in {self.wire}"
        return f"{backend}, {'each rank updates its slice' if self.owners_update else 'all update everything'}"


def usable(name: str, world: World) -> str:
    """Why a back end cannot be used on these ranks; empty where it can. Every rank must call this together."""
    nodes = len(set(world.leaders))
    if name == "shared" and nodes > 1:
        return "the ranks are on several hosts, which share no memory"
    if name == "hierarchical" and nodes == 1:
        return "all ranks are on one host, where shared does the same"
    if name == "horovod":
        # It may be installed on some hosts only.
        reasons = enumerate(world.gather_all(why_not(), "looking for Horovod"))
        return next((f"{world.name(rank)}: {why}" if rank else why for rank, why in reasons if why), "")
    return ""


def candidates(world: World, wire: str = "float32") -> list[str]:
    """What ``--allreduce auto`` measures on these ranks; the first wins a draw."""
    nodes = len(set(world.leaders))
    if nodes == 1:
        return ["shared", "mpi"] if wire == "float32" else ["ring", "halving-doubling"]
    # With one rank on each node the hierarchy would be a ring.
    names = [*(["hierarchical"] if nodes < world.size else []), "ring", "halving-doubling", "mpi"]
    return [name for name in names if wire == "float32" or name in NARROWING]


def open_backend(name: str, world: World, layout: Layout, wire: str = "float32") -> Backend:
    """A back end for vectors of ``layout``; every rank must call this together.

    Args:
        name: a key of ``BACKENDS``.
        world: the ranks that sum.
        layout: of the gradient.
        wire: the type in which gradients travel; other than ``float32`` only for ``NARROWING``.

    Raises:
        InputError: where it cannot be used on these ranks.
    """
    if why := usable(name, world):
        raise InputError(f"--allreduce {name} cannot be used here: {why}; use --allreduce auto")
    backend: Backend = BACKENDS[name](world, layout) if wire == "float32" else BACKENDS[name](world, layout, wire)
    return backend
