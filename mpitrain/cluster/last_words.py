"""What a rank does, where the others of its node can read it even after its end.

Heartbeats are seldom, and a killed rank sends none. So each rank notes its operation and step in a page of memory that
its watchdog's neighbours on the node map too: a note costs a store, and tells after a kill what was going on at that
very moment. The page is anonymous (``memfd_create``) and goes with the last process that maps it.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache

_PAGE = struct.Struct("<q64s")


class LastWords:
    """One rank's page."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, _PAGE.size)

    def note(self, operation: str, step: int) -> None:
        """Write what this rank does; of the operation at most 64 bytes."""
        _PAGE.pack_into(self._page, 0, step, _encoded(operation))

    def read(self) -> tuple[str, int]:
        """The operation and the step noted last; the operation is empty where none was."""
        step, operation = _PAGE.unpack_from(self._page)
        return operation.rstrip(b"\0").decode(errors="replace"), step


@lru_cache(maxsize=256)
def _encoded(operation: str) -> bytes:
    return operation.encode()


def exchange(
    links: Mapping[int, socket.socket], near: Iterable[int], timeout: float
) -> tuple[LastWords, dict[int, LastWords]]:
    """This rank's page, and those of its neighbours on the node; without those that are gone or do not answer.

    Args:
        links: connected, blocking Unix sockets, by rank; those at the other ends must call this too.
        near: the ranks among them that are on this node.
        timeout: seconds to wait for each.
    """
    own = os.memfd_create("mpitrain", os.MFD_CLOEXEC)
    os.ftruncate(own, _PAGE.size)
    pages = {}
    near = list(near)
    for rank in near:
        links[rank].settimeout(timeout)
        # One that is gone shows as the end of its socket, to those who watch it.
        with suppress(OSError):
            socket.send_fds(links[rank], [b"\0"], [own])
    for rank in near:
        with suppress(OSError):
            _, descriptors, _, _ = socket.recv_fds(links[rank], 1, 1)
            for descriptor in descriptors:
                pages[rank] = LastWords(descriptor)
                os.close(descriptor)
        links[rank].settimeout(None)
    mine = LastWords(own)
    os.close(own)
    return mine, pages
