"""Bytes between the keeper and ranks whose hosts do not see the run directory, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from mpitrain.checkpoints.slices import PIECE
from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.waiting import now, waiting
from mpitrain.cluster.world import World

_TAG = 9


def send(world: World, pieces: Iterable[np.ndarray], rank: int) -> None:
    """Send uint8 ``pieces`` of at most ``PIECE`` bytes to ``rank``, which calls :func:`receive`."""
    for piece in pieces:
        if piece.size:
            _send(world, piece, rank)
    _send(world, np.empty(0, np.uint8), rank)


def receive(world: World, rank: int) -> Iterator[np.ndarray]:
    """The pieces that ``rank`` sends, each valid until the next."""
    scratch, status = np.empty(PIECE, np.uint8), MPI.Status()
    while True:
        with waiting("receiving a slice of a checkpoint", now.step, (world.origin[rank],)):
            world.comm.Recv(scratch, rank, _TAG, status)
        count = status.Get_count(MPI.BYTE)
        if not count:
            return
        yield scratch[:count]


def _send(world: World, piece: np.ndarray, rank: int) -> None:
    with waiting("sending a slice of a checkpoint", now.step, (world.origin[rank],)):
        world.comm.Send(piece, rank, _TAG)
