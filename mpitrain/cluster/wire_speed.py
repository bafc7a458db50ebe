"""What the network between the hosts of a job gives to plain TCP: the limit that any exchange between them has."""

from __future__ import annotations

import select
import socket
import time

from mpitrain.cluster import links
from mpitrain.cluster.waiting import waiting
from mpitrain.cluster.world import World

_BYTES, _LARGEST, _REPEATS = 1 << 23, 1 << 28, 3
_ENOUGH = 0.05  # seconds that a measurement should last at least
_PIECE = 1 << 18
_OPERATION = "measuring the network"


def wire_speed(world: World) -> float | None:
    """Bytes/s that each host sends to the next while it receives from the one before, on the slowest link.

    Every rank must call it together, and gets the same; None where all ranks are on one host. One rank of each host
    takes part.

    Args:
        world: the ranks.
    """
    leaders = sorted(set(world.leaders))
    if len(leaders) == 1:
        return None
    ring = world.split(leaders)
    speed: float | None = None
    if ring is not None:
        right, left = (ring.rank + 1) % ring.size, (ring.rank - 1) % ring.size
        near = links.connect(ring, {right, left}, 60.0)
        nbytes, best = _BYTES, 0.0
        for _ in range(_REPEATS):
            ring.meet(_OPERATION)
            seconds = max(ring.gather_all(_pass_on(near[right], near[left], nbytes, ring), _OPERATION))
            best = max(best, nbytes / seconds)
            if seconds < _ENOUGH and nbytes < _LARGEST:
                nbytes *= 4
        for link in near.values():
            link.close()
        ring.free()
        speed = best
    return float(world.share(speed, leaders[0], _OPERATION))


def _pass_on(right: socket.socket, left: socket.socket, nbytes: int, ring: World) -> float:
    """Seconds to send ``nbytes`` to the right and receive as many from the left."""
    out, into = memoryview(bytes(_PIECE)), memoryview(bytearray(_PIECE))
    for link in (right, left):
        link.setblocking(False)
    begin = time.perf_counter()
    to_send = to_come = nbytes
    with waiting(_OPERATION, 0, ring.others):
        while to_send or to_come:
            readable, writable, _ = select.select([left] if to_come else [], [right] if to_send else [], [])
            if writable:
                to_send -= right.send(out[: min(_PIECE, to_send)])
            if readable:
                came = left.recv_into(into[: min(_PIECE, to_come)])
                if not came:
                    raise ConnectionError("a host left while the network was measured")
                to_come -= came
    return time.perf_counter() - begin
