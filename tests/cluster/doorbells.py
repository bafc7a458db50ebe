"""Three ranks connect their doorbells while strangers knock, over Unix sockets and over TCP; then one rank goes away.

mpirun -np 3 python -m tests.cluster.doorbells
"""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from mpitrain.cluster import links
from mpitrain.cluster.bells import Bells
from mpitrain.cluster.hooks import install_hooks
from mpitrain.cluster.job import start_mpi, stop_mpi
from mpitrain.cluster.world import World
from mpitrain.errors import PeerLostError

CROWD = 100

held: list[socket.socket] = []
called: list[Any] = []

strangers = 0
call = links._call


def knock(world: World, rank: int, places: list, key: bytes, deadline: float) -> socket.socket:
    """Before a rank calls another, strangers have called it: they talk rubbish, hold the line, or hang up."""
    global strangers
    rubbish = (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 20, b"short", None)
    for words in (*rubbish, *[b""] * CROWD):
        stranger = socket.socket(socket.AF_INET if isinstance(places[0], tuple) else socket.AF_UNIX)
        stranger.connect(places[-1])
        strangers += 1
        if words is None:
            stranger.close()
        else:
            stranger.sendall(words)
            held.append(stranger)
    called.append(places[-1])
    return call(world, rank, places, key, deadline)


def listeners() -> list[str]:
    """What this process listens on: the abstract Unix sockets, and the TCP ports that are no MPI library's."""
    mine = {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    }
    unix = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    accepting = 0x10000
    return [
        row[-1]
        for row in unix
        if f"socket:[{row[6]}]" in mine and int(row[3], 16) & accepting and "mpitrain" in row[-1]
    ]


def closed(place: Any) -> bool:
    """Whether nobody listens there any more."""
    with socket.socket(socket.AF_INET if isinstance(place, tuple) else socket.AF_UNIX) as knocking:
        return knocking.connect_ex(place) == errno.ECONNREFUSED


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
    assert not listeners(), "once all have met, the watchdog's door is shut"
    links._call = knock
    talk(world)
    alone = dataclasses.replace(world, leaders=tuple(range(world.size)))  # as if each rank had a host of its own
    talk(alone)
    assert strangers == (4 + CROWD) * 2 * world.rank
    assert not listeners()
    assert all(map(closed, called))
    print("well", flush=True)
    stop_mpi()


if __name__ == "__main__":
    main()
