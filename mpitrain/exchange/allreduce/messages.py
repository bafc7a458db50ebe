"""Vectors that travel in messages: cut into chunks, so that a part is on its way while the next is computed."""

from __future__ import annotations

import numpy as np

from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.waiting import complete
from mpitrain.cluster.world import MAX_COUNT, World

CHUNK = 262144
"""Elements of a message: few enough to keep the wire busy, enough that each is worth its handshake (measured)."""


def chunks(part: slice) -> list[slice]:
    """``part`` cut into slices of at most ``CHUNK`` elements, and of no more than a message may have."""
    most = min(CHUNK, MAX_COUNT)
    return [slice(low, min(low + most, part.stop)) for low in range(part.start, part.stop, most)]


class Messages:
    """Sends and receives between the ranks of a world; counts what is sent.

    Args:
        world: its communicator carries nothing else meanwhile.
    """

    def __init__(self, world: World) -> None:
        self._comm, self._sleeping = world.comm, world.crowded
        self.sent = 0
        """Bytes; whoever begins a sum sets it to zero."""

    def send(self, values: np.ndarray, rank: int) -> MPI.Request:
        """Begin to send ``values``, which must stay as they are until the request is complete."""
        self.sent += values.nbytes
        return self._comm.Isend(values, rank)

    def receive(self, out: np.ndarray, rank: int) -> MPI.Request:
        """Begin to receive into ``out``; messages of one rank come in the order in which they were sent."""
        return self._comm.Irecv(out, rank)

    def wait(self, request: MPI.Request) -> None:
        """Return when ``request`` is complete."""
        complete(request, self._sleeping)

    def wait_all(self, requests: list[MPI.Request]) -> None:
        """Return when all are complete."""
        for request in requests:
            complete(request, self._sleeping)

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is set on any rank; every rank must call it."""
        mine, theirs = np.array([flag], np.uint8), np.empty(1, np.uint8)
        self.wait(self._comm.Iallreduce(mine, theirs, MPI.MAX))
        return bool(theirs[0])
