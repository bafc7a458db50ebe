"""Moving messages between workers and servers: headers and slices over MPI, each announced by a doorbell.

Who waits sleeps in the kernel on its doorbells; the MPI call that follows a ring lasts one message. MPI moves nothing
while its process sleeps, so a rank with a send under way keeps testing it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from mpitrain.cluster.bells import Bells
from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.waiting import now, waiting
from mpitrain.cluster.world import MAX_COUNT, World
from mpitrain.exchange.base import Traffic
from mpitrain.exchange.servers.messages import Codec, Message

_HEADER, _SLICE = 1, 2
_TEST_PAUSE = 100e-6  # seconds of sleep between tests of a send, where ranks outnumber cores


class Endpoint:
    """One rank's end of all its links.

    Args:
        world: the ranks; every one of them must construct its endpoint together.
        peers: ranks that this one exchanges messages with.
        codec: of the messages.
    """

    def __init__(self, world: World, peers: Iterable[int], codec: Codec) -> None:
        self._world, self._comm, self._codec = world, world.comm, codec
        self._bells = Bells(world, peers)
        self._peers = tuple(world.origin[rank] for rank in peers)
        self._pause = _TEST_PAUSE if world.crowded else 0.0
        self._header = np.empty(codec.length)
        self._status = MPI.Status()
        self._sending: list[tuple[list[MPI.Request], object, Callable[[], None] | None]] = []
        self.traffic = Traffic()

    def send(
        self,
        rank: int,
        message: Message,
        data: Sequence[np.ndarray] = (),
        sent: Callable[[], None] | None = None,
    ) -> None:
        """Start sending; ``data`` must stay as it is until ``sent`` is called (from a later call of this object).

        Args:
            rank: the receiver.
            message: goes first.
            data: contiguous arrays, each of which the receiver must take by a ``receive_slice`` of its own.
            sent: called when all has left.
        """
        vector = self._codec.encode(message)
        requests = [self._comm.Isend(vector, rank, _HEADER)]
        self.traffic.headers += vector.nbytes
        for array in data:
            requests += [self._comm.Isend(part, rank, _SLICE) for part in self._parts(array)]
            self.traffic.data += array.nbytes
        self._bells.ring(rank)
        self._sending.append((requests, (vector, data), sent))

    def receive(self, operation: str, step: int) -> tuple[int, Message]:
        """The next message and who sent it; sleeps until there is one."""
        with waiting(operation, step, self._peers):
            while True:
                self._settle()
                rank = self._bells.answer(self._pause if self._sending else None)
                if rank is not None:
                    return self._take(rank)

    def look(self) -> tuple[int, Message] | None:
        """The next message and who sent it, if there is one already."""
        rank = self._bells.answer(0.0)
        if rank is None:
            return None
        with waiting("receiving a message", now.step, (self._world.origin[rank],)):
            return self._take(rank)

    def receive_slice(self, rank: int, out: np.ndarray) -> None:
        """Take the next array that travels beside the message just received from ``rank``."""
        with waiting("receiving a slice", now.step, (self._world.origin[rank],)):
            for part in self._parts(out):
                self._comm.Recv(part, rank, _SLICE)

    def progress(self) -> None:
        """Let MPI move on, and notice which sends are complete."""
        with waiting("sending", now.step, self._peers):
            self._settle()
            time.sleep(self._pause)

    def flush(self) -> None:
        """Return when all that was sent has left."""
        with waiting("sending", now.step, self._peers):
            for requests, _, _ in self._sending:
                MPI.Request.Waitall(requests)
        self._settle()

    def close(self) -> None:
        """Send what is left, and close the doorbells; every rank must call it."""
        self.flush()
        self._bells.close()

    def _take(self, rank: int) -> tuple[int, Message]:
        self._comm.Recv(self._header, rank, _HEADER, self._status)
        return rank, self._codec.decode(self._header[: self._status.Get_count(MPI.DOUBLE)])

    def _settle(self) -> None:
        for item in self._sending[:]:
            requests, _, sent = item
            if MPI.Request.Testall(requests):
                self._sending.remove(item)
                if sent:
                    sent()

    def _parts(self, data: np.ndarray) -> list[np.ndarray]:
        flat = data.reshape(-1)
        return [flat[low : low + MAX_COUNT] for low in range(0, flat.size, MAX_COUNT)]
