"""Doorbells: sockets that wake a rank which sleeps in the kernel, beside the MPI messages that they announce.

MPI has no wait that sleeps. A sender rings once for each message; the receiver sleeps on its sockets until then, and
the MPI call that follows lasts one message. The end of a peer shows at once as the end of its socket.

Within a node the sockets are abstract Unix ones, which leave no files, and the peer's user is checked; between nodes
they are TCP. A random key that travels over MPI lets nobody else in.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable

import psutil

from mpitrain.cluster.world import World
from mpitrain.errors import ExitCode, MpitrainError

_HELLO = struct.Struct("16si")
_CREDENTIALS = struct.Struct("3i")


class PeerLostError(MpitrainError):
    """A peer's process is gone."""

    exit_code = ExitCode.PEER_FAILED


class Bells:
    """This rank's doorbells to and from ``peers``.

    Args:
        world: every rank of it must construct its ``Bells`` together.
        peers: the ranks that ring here and are rung from here; the relation must be symmetric.
        timeout: seconds until all peers must be connected.

    Raises:
        PeerLostError: where a peer cannot be reached in time.
    """

    def __init__(self, world: World, peers: Iterable[int], timeout: float = 60.0) -> None:
        self._world = world
        self._sockets: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._rung: deque[int] = deque()
        self._connect(sorted(peers), time.monotonic() + timeout)
        for rank, peer in self._sockets.items():
            peer.settimeout(None)
            self._selector.register(peer, selectors.EVENT_READ, rank)

    def ring(self, rank: int) -> None:
        """Announce one message to ``rank``."""
        try:
            self._sockets[rank].send(b"!")
        except OSError:
            raise self._lost(rank) from None

    def answer(self, timeout: float | None) -> int | None:
        """The next rank that has rung, once for each ring in the order seen; None after ``timeout`` seconds.

        Raises:
            PeerLostError: where a peer's process has ended.
        """
        if not self._rung:
            for key, _ in self._selector.select(timeout):
                try:
                    rings = len(key.fileobj.recv(4096))  # type: ignore[union-attr]
                except OSError:
                    rings = 0
                if not rings:
                    raise self._lost(key.data)
                self._rung.extend([key.data] * rings)
        return self._rung.popleft() if self._rung else None

    def close(self) -> None:
        """Close all sockets; call it when no peer waits any more."""
        self._selector.close()
        for peer in self._sockets.values():
            peer.close()

    def _lost(self, rank: int) -> PeerLostError:
        return PeerLostError(f"{self._world.name(rank)} is gone: its process ended or its host was lost")

    def _connect(self, peers: list[int], deadline: float) -> None:
        world, me = self._world, self._world.rank
        near = socket.socket(socket.AF_UNIX)
        near_name = b"\0mpitrain-" + secrets.token_hex(16).encode()
        near.bind(near_name)
        far = socket.socket(socket.AF_INET)
        far.bind(("", 0))
        with near, far:
            for listener in (near, far):
                listener.listen(world.size)
            mine = (near_name, far.getsockname()[1], _addresses(), secrets.token_bytes(16))
            table = world.gather_all(mine, "connecting")
            key = table[0][3]
            # Ascending order ends: rank 0 only accepts, and each rank accepts once the lower ones have let it in.
            for rank in (r for r in peers if r < me):
                name, port, addresses, _ = table[rank]
                places = [name] if rank in world.node else [(address, port) for address in addresses]
                self._sockets[rank] = self._call(rank, places, key, deadline)
            expected = {r for r in peers if r > me}
            while expected:
                rank, peer = self._accept([near, far], key, expected, deadline)
                self._sockets[rank] = peer
                expected.discard(rank)

    def _call(self, rank: int, places: list, key: bytes, deadline: float) -> socket.socket:
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
                    peer.sendall(_HELLO.pack(key, self._world.rank))
                    if peer.recv(1) == b"+":
                        return peer
                peer.close()
            time.sleep(0.05)
        tried = ", ".join(str(p[0]) for p in places if isinstance(p, tuple)) or "a Unix socket"
        raise PeerLostError(
            f"{self._world.name(self._world.rank)} cannot reach {self._world.name(rank)} over any of its addresses "
            f"({tried}): check its firewall and routes"
        )

    def _accept(
        self, listeners: list[socket.socket], key: bytes, expected: set[int], deadline: float
    ) -> tuple[int, socket.socket]:
        with selectors.DefaultSelector() as selector:
            for listener in listeners:
                selector.register(listener, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                for ready, _ in selector.select(left):
                    peer, _ = ready.fileobj.accept()  # type: ignore[union-attr]
                    peer.settimeout(2.0)
                    with contextlib.suppress(OSError, struct.error):
                        if peer.family == socket.AF_UNIX:
                            _, uid, _ = _CREDENTIALS.unpack(
                                peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                            )
                            trusted = uid == os.getuid()
                        else:
                            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                            trusted = True
                        said, rank = _HELLO.unpack(peer.recv(_HELLO.size, socket.MSG_WAITALL))
                        if trusted and secrets.compare_digest(said, key) and rank in expected:
                            peer.sendall(b"+")
                            return rank, peer
                    peer.close()
        missing = ", ".join(self._world.name(r) for r in sorted(expected))
        raise PeerLostError(f"{self._world.name(self._world.rank)} was not reached by {missing}")


def _addresses() -> list[str]:
    """This host's IPv4 addresses, loopback last: on one machine without a network it is all there is."""
    found = [a.address for addresses in psutil.net_if_addrs().values() for a in addresses if a.family == socket.AF_INET]
    return sorted(found, key=lambda address: address.startswith("127."))
