"""Latency and bandwidth between neighbouring hosts, with a deadline: an unroutable network would never answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.world import World

_PINGS, _BLOCKS, _BLOCK = 20, 4, 4 << 20  # bytes
_PAUSE = 20e-6


@dataclass(frozen=True)
class Wire:
    """Between the first ranks of two hosts.

    Args:
        host: one of them.
        other: the other.
        latency: seconds one way, the median.
        bandwidth: bytes per second one way.
        error: why nothing was measured, and what to do.
    """

    host: str
    other: str
    latency: float = 0.0
    bandwidth: float = 0.0
    error: str = ""


def neighbours(leaders: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Pairs of neighbouring nodes' first ranks, closed to a ring, in rounds in which each rank has one partner."""
    firsts = sorted(set(leaders))
    pairs = list(pairwise(firsts))
    if len(firsts) > 2:
        pairs.append((firsts[0], firsts[-1]))
    rounds: list[list[tuple[int, int]]] = []
    for pair in pairs:
        free = next((r for r in rounds if not any(set(pair) & set(other) for other in r)), None)
        if free is None:
            rounds.append(free := [])
        free.append(pair)
    return rounds


def probe(world: World, deadline: float, hint: str) -> list[Wire]:
    """Measure this rank's part of the ring; the lower rank of each pair has the result.

    Args:
        world: every rank must call it.
        deadline: seconds for each pair.
        hint: what to do where nothing comes back.
    """
    found = []
    for pairs in neighbours(world.leaders):
        world.meet("measuring the network")
        for low, high in pairs:
            if world.rank in (low, high):
                other = high if world.rank == low else low
                wire = _measure(world, other, world.rank == low, time.monotonic() + deadline, deadline, hint)
                if world.rank == low:
                    found.append(wire)
    return found


def _measure(world: World, other: int, first: bool, end: float, deadline: float, hint: str) -> Wire:
    names = world.hosts[world.rank], world.hosts[other]
    small, block = np.zeros(8, np.uint8), np.zeros(_BLOCK, np.uint8)
    pings: list[float] = []
    try:
        for _ in range(_PINGS):
            pings.append(_exchange(world, other, first, small, end))
        # The first block opens what a connection opens only for large messages.
        whole = min([_exchange(world, other, first, block, end) for _ in range(_BLOCKS)][1:])
    except TimeoutError:
        return Wire(*names, error=f"no message got through in {deadline:g} s: {hint}")
    latency = float(np.median(pings)) / 2
    return Wire(*names, latency, _BLOCK / max(whole / 2 - latency, 1e-9))


def _exchange(world: World, other: int, first: bool, buffer: np.ndarray, end: float) -> float:
    """There and back; seconds."""
    begin = time.monotonic()
    for sends in (first, not first):
        request = world.comm.Isend(buffer, other) if sends else world.comm.Irecv(buffer, other)
        _await(request, end)
    return time.monotonic() - begin


def _await(request: MPI.Request, end: float) -> None:
    tries = 0
    while not request.Test():
        tries += 1
        if tries > 1000:
            time.sleep(_PAUSE)
        if time.monotonic() > end:
            raise TimeoutError
