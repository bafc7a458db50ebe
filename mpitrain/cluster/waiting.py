"""The one place through which a rank waits for others.

MPI waits by spinning. Where ranks outnumber cores that spinning takes the core from whoever is waited for, so an idle
wait sleeps between its tests there; where each rank has a core of its own, MPI's own wait reacts fastest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from mpitrain.cluster.mpi import MPI

_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two tests of a sleeping wait


@dataclass
class Wait:
    """What a rank waits for: the operation, the training step, and the ranks that must act first."""

    operation: str
    step: int
    ranks: tuple[int, ...]
    since: float = field(default_factory=time.monotonic)


current: Wait | None = None
"""What this process waits for now, or None while it works; a message about a stuck run names it."""


@contextmanager
def waiting(operation: str, step: int, ranks: Sequence[int]) -> Iterator[None]:
    """Record that this rank waits in ``operation`` at ``step`` for ``ranks``."""
    global current
    outer, current = current, Wait(operation, step, tuple(ranks))
    try:
        yield
    finally:
        current = outer


def idle(requests: Sequence[MPI.Request], sleeping: bool) -> None:
    """Wait until all ``requests`` are complete.

    Args:
        requests: requests of which none depends on this process doing anything but waiting.
        sleeping: whether to sleep between tests, because ranks outnumber cores.
    """
    if not sleeping:
        MPI.Request.Waitall(list(requests))
        return
    pending = list(requests)
    pause = _SHORTEST
    while not MPI.Request.Testall(pending):
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)
