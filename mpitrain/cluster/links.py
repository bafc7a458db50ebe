"""Sockets between the ranks of a job, and nobody else.

Within a node they are abstract Unix ones, which leave no files, and the peer's user is checked; between nodes they are
TCP. A random key that travels over MPI lets nobody else in. Strangers who talk rubbish, hold the line or hang up cost
the job nothing: all callers are heard side by side.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterable

import psutil

from mpitrain.cluster.world import World
from mpitrain.errors import PeerLostError

_HELLO = struct.Struct("16si")
_CREDENTIALS = struct.Struct("3i")
_STRANGERS = 512  # callers that are heard at a time; the one who has said nothing for longest makes room


def connect(world: World, peers: Iterable[int], timeout: float) -> dict[int, socket.socket]:
    """One connected, blocking socket to each of ``peers``.

    Args:
        world: every rank of it must call this together.
        peers: the relation must be symmetric.
        timeout: seconds until all peers must be connected.

    Raises:
        PeerLostError: where a peer cannot be reached in time.
    """
    deadline = time.monotonic() + timeout
    near = socket.socket(socket.AF_UNIX)
    near_name = b"\0mpitrain-" + secrets.token_hex(16).encode()
    near.bind(near_name)
    far = socket.socket(socket.AF_INET)
    far.bind(("", 0))
    links: dict[int, socket.socket] = {}
    with near, far:
        for listener in (near, far):
            listener.listen(socket.SOMAXCONN)
            listener.setblocking(False)
        mine = (near_name, far.getsockname()[1], _addresses(), secrets.token_bytes(16))
        table = world.gather_all(mine, "connecting")
        key = table[0][3]
        # Ascending order ends: rank 0 only accepts, and each rank accepts once the lower ones have let it in.
        for rank in sorted(r for r in peers if r < world.rank):
            name, port, addresses, _ = table[rank]
            places = [name] if rank in world.node else [(address, port) for address in addresses]
            links[rank] = _call(world, rank, places, key, deadline)
        links |= _accept(world, [near, far], key, {r for r in peers if r > world.rank}, deadline)
    for link in links.values():
        link.settimeout(None)
    return links


def _call(world: World, rank: int, places: list, key: bytes, deadline: float) -> socket.socket:
    while time.monotonic() < deadline:
        for place in places:
            peer = socket.socket(socket.AF_INET if isinstance(place, tuple) else socket.AF_UNIX)
            # An address may be that of another host's private bridge: only the peer's own reply counts.
            peer.settimeout(min(3.0, max(0.1, deadline - time.monotonic())))
            with contextlib.suppress(OSError):
                peer.connect(place)
                if isinstance(place, tuple):
                    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer.settimeout(max(0.1, deadline - time.monotonic()))
                peer.sendall(_HELLO.pack(key, world.rank))
                if peer.recv(1) == b"+":
                    return peer
            peer.close()
        time.sleep(0.05)
    tried = ", ".join(str(p[0]) for p in places if isinstance(p, tuple)) or "a Unix socket"
    raise PeerLostError(
        f"{world.name(world.rank)} cannot reach {world.name(rank)} over any of its addresses ({tried}): check its "
        "firewall and routes"
    )


def _accept(
    world: World, listeners: list[socket.socket], key: bytes, expected: set[int], deadline: float
) -> dict[int, socket.socket]:
    links: dict[int, socket.socket] = {}
    said: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as selector:

        def forget(caller: socket.socket) -> None:
            selector.unregister(caller)
            del said[caller]

        for listener in listeners:
            selector.register(listener, selectors.EVENT_READ)
        while len(links) < len(expected) and (left := deadline - time.monotonic()) > 0:
            for ready, _ in selector.select(left):
                caller: socket.socket = ready.fileobj  # type: ignore[assignment]
                if caller in listeners:
                    with contextlib.suppress(OSError):
                        caller, _ = caller.accept()
                        caller.setblocking(False)
                        selector.register(caller, selectors.EVENT_READ)
                        said[caller] = b""
                    if len(said) > _STRANGERS:
                        oldest = next(iter(said))
                        forget(oldest)
                        oldest.close()
                elif caller in said:
                    rank = _heard(caller, said, key)
                    if rank is None:
                        continue
                    forget(caller)
                    if rank in expected and rank not in links:
                        links[rank] = _let_in(caller)
                    else:
                        caller.close()
        for caller in [*said]:
            forget(caller)
            caller.close()
    missing = expected - links.keys()
    if missing:
        names = ", ".join(world.name(rank) for rank in sorted(missing))
        raise PeerLostError(f"{world.name(world.rank)} was not reached by {names}: check the firewall between them")
    return links


def _let_in(caller: socket.socket) -> socket.socket:
    caller.setblocking(True)
    with contextlib.suppress(OSError):  # a peer that has just died is noticed at the first word with it
        if caller.family == socket.AF_INET:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        caller.sendall(b"+")
    return caller


def _heard(caller: socket.socket, said: dict[socket.socket, bytes], key: bytes) -> int | None:
    """The rank that a caller has proved to be, -1 for a stranger, None while it has not said enough."""
    try:
        words = caller.recv(_HELLO.size - len(said[caller]))
    except BlockingIOError:
        return None
    except OSError:
        return -1
    said[caller] += words
    if words and len(said[caller]) < _HELLO.size:
        return None
    if not words or not _trusted(caller):
        return -1
    claimed, rank = _HELLO.unpack(said[caller])
    return rank if secrets.compare_digest(claimed, key) else -1


def _trusted(caller: socket.socket) -> bool:
    """Within a node, whether the caller is of this user; between nodes the key alone tells."""
    if caller.family != socket.AF_UNIX:
        return True
    credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.getuid())


def _addresses() -> list[str]:
    """This host's IPv4 addresses, loopback last: on one machine without a network it is all there is."""
    found = [a.address for addresses in psutil.net_if_addrs().values() for a in addresses if a.family == socket.AF_INET]
    return sorted(found, key=lambda address: address.startswith("127."))
