"""Memory that the ranks of a node share: anonymous, so that nothing is left behind however a job ends.

Each rank makes one piece and maps all; the descriptors travel over the job's own sockets. There are no names to
collide, and no limit but the node's memory.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from contextlib import suppress

import numpy as np

from mpitrain.cluster import links
from mpitrain.cluster.world import World

_SIZE = struct.Struct("q")


class NodeMemory:
    """A piece of memory of each rank of a node, mapped by all of them.

    Args:
        world: the ranks of one node; every one must construct this together.
        nbytes: size of this rank's piece.
        timeout: seconds until all ranks must be connected.

    Raises:
        PeerLostError: where a rank cannot be reached in time.
    """

    def __init__(self, world: World, nbytes: int, timeout: float = 60.0) -> None:
        own = os.memfd_create("mpitrain", os.MFD_CLOEXEC)
        os.ftruncate(own, nbytes)
        others = links.connect(world, [r for r in range(world.size) if r != world.rank], timeout)
        for link in others.values():
            socket.send_fds(link, [_SIZE.pack(nbytes)], [own])
        self.pieces: list[np.ndarray] = []
        """Each rank's piece as bytes, in rank order; the first byte of each lies on the border of a page."""
        for rank in range(world.size):
            if rank == world.rank:
                self.pieces.append(_mapped(own, nbytes))
            else:
                told, [descriptor], _, _ = socket.recv_fds(others[rank], _SIZE.size, 1)
                self.pieces.append(_mapped(descriptor, _SIZE.unpack(told)[0]))
                others[rank].close()


def _mapped(descriptor: int, nbytes: int) -> np.ndarray:
    if not nbytes:
        os.close(descriptor)
        return np.empty(0, np.uint8)
    memory = mmap.mmap(descriptor, nbytes)
    os.close(descriptor)
    with suppress(OSError):  # fewer, larger pages where the kernel allows it
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
