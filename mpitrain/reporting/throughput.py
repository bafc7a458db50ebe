"""The training clock, and samples per second on it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

SKIPPED_STEPS = 10
"""Steps that do not count: caches, connections and lazily built functions warm up in them."""


class Clock:
    """A stopwatch that stands still until ``start``, and while ``paused``.

    Args:
        source: seconds from any fixed point, never going back.
        before: seconds that earlier parts of a resumed run took.
    """

    def __init__(self, source: Callable[[], float] = time.perf_counter, before: float = 0.0) -> None:
        self._source = source
        self._before = before
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds that the clock has run."""
        return self._before + (0.0 if self._since is None else self._source() - self._since)

    def start(self) -> None:
        """Run, or go on running."""
        if self._since is None:
            self._since = self._source()

    def stop(self) -> None:
        """Stand still until the next ``start``."""
        self._before, self._since = self.seconds, None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still inside the block, then go on if the clock ran before it; blocks may nest."""
        running = self._since is not None
        self.stop()
        try:
            yield
        finally:
            if running:
                self.start()


class Throughput:
    """Samples per second on a clock, counted from the end of the first ``skip`` steps.

    Args:
        clock: read once a step, when ``step`` is called.
        skip: steps whose samples and time do not count in ``rate``.
    """

    def __init__(self, clock: Clock, skip: int = SKIPPED_STEPS) -> None:
        self._clock = clock
        self._skip = skip
        self._steps = 0
        self._mark = self._lap = self._now = (0, clock.seconds)

    def step(self, samples: int) -> None:
        """Note that a step over ``samples`` samples has just ended."""
        self._steps += 1
        self._now = (self._now[0] + samples, self._clock.seconds)
        if self._steps <= self._skip:
            self._mark = self._now

    @property
    def rate(self) -> float | None:
        """Samples per second from the skipped steps to the last one; None until a step counts."""
        return _rate(self._mark, self._now)

    def lap(self) -> float | None:
        """Samples per second since the lap before, skipped steps included; None without a step."""
        rate = _rate(self._lap, self._now)
        self._lap = self._now
        return rate


def _rate(start: tuple[int, float], end: tuple[int, float]) -> float | None:
    seconds = end[1] - start[1]
    return (end[0] - start[0]) / seconds if seconds > 0 else None
