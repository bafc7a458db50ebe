"""Whether the hosts of a job are alike: the same versions everywhere, and the same type of processor."""

from __future__ import annotations

from mpitrain.cluster import host
from mpitrain.cluster.mpi_library import Library
from mpitrain.cluster.world import World
from mpitrain.errors import InputError
from mpitrain.reporting.stream import say
from mpitrain.training.phases import phase


def compare_hosts(world: World) -> None:
    """Refuse hosts with other versions of what computes or talks; say once where processors differ.

    Args:
        world: all ranks; each must call it.

    Raises:
        AgreedExit: on every rank, naming the first host that differs.
    """
    versions = {name: str(version) for name, version in host.versions().items()} | {"MPI": Library.loaded().name}
    with phase(world, "comparing the hosts", meets=True):
        told = world.gather_all((versions, host.processor()), "comparing the hosts")
        first, processor = told[0]
        for rank, (theirs, _) in enumerate(told):
            differing = [name for name in first if theirs.get(name) != first[name]]
            if differing:
                differences = ", ".join(f"{n} {theirs.get(n)} instead of {first[n]}" for n in differing)
                raise InputError(
                    f"{world.name(rank)} has {differences} as {world.name(0)} has: install the same versions on every "
                    "host"
                )
    others = dict.fromkeys(world.hosts[rank] for rank, (_, theirs) in enumerate(told) if theirs != processor)
    if others and world.rank == 0:
        say(
            f"mpitrain: warning: {', '.join(others)} {'has' if len(others) == 1 else 'have'} another type of processor "
            f"than {world.hosts[0]} ({processor}): two runs agree to rounding there, and no longer bit for bit",
            to_errors=True,
        )
