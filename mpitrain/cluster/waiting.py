"""What this rank does now, and the one place through which it waits for others.

MPI waits by spinning. Where ranks outnumber cores that spinning takes the core from whoever is waited for, so an idle
wait sleeps between its tests there; where each rank has a core of its own, MPI's own wait reacts fastest.

The watchdog reads from ``now`` what to tell the other ranks, at moments of its own choosing: whoever writes it writes
single attributes and never waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from types import TracebackType

from mpitrain.cluster.last_words import LastWords
from mpitrain.cluster.mpi import MPI

_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two tests of a sleeping wait
_YIELDS, _NAP = 50, 50e-6  # tests of a wait for one message before it sleeps, and the seconds that it then sleeps


class Stage(IntEnum):
    """How far a rank's life has come; it decides how long the others are patient with it."""

    REST = 0
    """The user's own code runs, outside of any run."""
    START = 1
    RUN = 2
    LEAVING = 3
    CONNECT = 4
    """MPI's first messages are under way."""


class Activity:
    """What this process does: read by the watchdog, written by the main thread.

    Args:
        stage: how far the rank's life has come.
    """

    __slots__ = ("_stage", "moves", "operation", "page", "ranks", "stage_changed", "step")

    def __init__(self, stage: Stage = Stage.REST) -> None:
        self._stage = stage
        self.stage_changed: Callable[[], None] = lambda: None
        """Lets the others know at once: a rank that stops soon after is judged by the limit of its new stage."""
        self.operation = "starting"
        self.step = 0
        self.ranks: tuple[int, ...] | None = None
        """Ranks of the job that must act first; empty for all others; None while this rank works."""
        self.moves = 0
        """Grows with everything that is begun or done: a rank whose count stands still does not come on."""
        self.page: LastWords | None = None
        """Where others find it after this process's end."""

    @property
    def stage(self) -> Stage:
        """How far this rank's life has come."""
        return self._stage

    @stage.setter
    def stage(self, stage: Stage) -> None:
        if stage is not self._stage:
            self._stage = stage
            self.stage_changed()

    def work(self, operation: str, step: int | None = None) -> None:
        """Note that this rank begins ``operation``, at ``step`` if that has changed."""
        self.operation = operation
        if step is not None:
            self.step = step
        self.moved()

    def moved(self) -> None:
        """Note that something was begun or done."""
        self.moves += 1
        if self.page is not None:
            self.page.note(self.operation, self.step)


now = Activity()
"""This process."""


class waiting:
    """While the block runs this rank waits in ``operation`` at ``step`` for ``ranks`` (empty: for all others)."""

    __slots__ = ("_before", "_operation", "_ranks", "_step")

    def __init__(self, operation: str, step: int, ranks: tuple[int, ...] = ()) -> None:
        self._operation, self._step, self._ranks = operation, step, ranks

    def __enter__(self) -> None:
        self._before = now.operation, now.ranks
        now.operation, now.ranks, now.step = self._operation, self._ranks, self._step
        now.moved()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        now.operation, now.ranks = self._before
        now.moved()


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


def complete(request: MPI.Request, sleeping: bool) -> None:
    """Wait for what comes soon: ranks that are nearly here, or one message of many that follow each other.

    Between two tests the core is offered to whoever else could run: another process of the machine, or a rank of a host
    that believes the same core to be its own. MPI moves other messages on meanwhile, so sleeps stay short.

    Args:
        request: what is waited for.
        sleeping: whether to sleep after a while, because ranks outnumber cores.
    """
    tests = 0
    while not request.Test():
        tests += 1
        if sleeping and tests > _YIELDS:
            time.sleep(_NAP)
        else:
            os.sched_yield()
    now.moves += 1
