"""Three ranks connect their doorbells while strangers knock, over Unix sockets and over TCP; then one rank goes away.

mpirun -np 3 python -m tests.cluster.doorbells
"""

from __future__ import annotations

import dataclasses
import socket

import pytest

from mpitrain.cluster import links
from mpitrain.cluster.bells import Bells
from mpitrain.cluster.hooks import install_hooks
from mpitrain.cluster.job import start_mpi, stop_mpi
from mpitrain.cluster.world import World
from mpitrain.errors import PeerLostError

held: list[socket.socket] = []


strangers = 0
call = links._call


def knock(world: World, rank: int, places: list, key: bytes, deadline: float) -> socket.socket:
    """Before a rank calls another, strangers have called it: they talk rubbish, hold the line, or hang up."""
    global strangers
    for words in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 20, b"short", b"", None):
        stranger = socket.socket(socket.AF_INET if isinstance(places[0], tuple) else socket.AF_UNIX)
        stranger.connect(places[-1])
        strangers += 1
        if words is None:
            stranger.close()
        else:
            stranger.sendall(words)
            held.append(stranger)
    return call(world, rank, places, key, deadline)


def talk(world: World) -> None:
    others = [rank for rank in range(world.size) if rank != world.rank]
    bells = Bells(world, others, timeout=60)
    for rank in others:
        for _ in range(1 + world.rank):
            bells.ring(rank)
    heard = sorted(bells.answer(30) for _ in range(sum(1 + rank for rank in others)))  # type: ignore[type-var]
    assert heard == sorted(rank for rank in others for _ in range(1 + rank)), heard
    world.meet("all have heard all")
    assert bells.answer(0.05) is None, "strangers ring no bell"
    world.meet("before one leaves")
    if world.rank == 1:
        bells.close()
    else:
        with pytest.raises(PeerLostError, match=r"^rank 1 is gone"):
            bells.answer(30)
    world.meet("the end")


def main() -> None:
    install_hooks()
    world = start_mpi()
    links._call = knock
    talk(world)
    alone = dataclasses.replace(world, leaders=tuple(range(world.size)))  # as if each rank had a host of its own
    talk(alone)
    assert strangers == 5 * 2 * world.rank
    print("well", flush=True)
    stop_mpi()


if __name__ == "__main__":
    main()
