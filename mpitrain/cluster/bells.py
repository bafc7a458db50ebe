"""Doorbells: sockets that wake a rank which sleeps in the kernel, beside the MPI messages that they announce.

MPI has no wait that sleeps. A sender rings once for each message; the receiver sleeps on its sockets until then, and
the MPI call that follows lasts one message. The end of a peer shows at once as the end of its socket.

The sockets are those of ``links``.
"""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Iterable

from mpitrain.cluster import links
from mpitrain.cluster.world import World
from mpitrain.errors import PeerLostError


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
        self._selector = selectors.DefaultSelector()
        self._rung: deque[int] = deque()
        self._sockets = links.connect(world, peers, timeout)
        for rank, peer in self._sockets.items():
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
