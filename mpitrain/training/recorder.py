"""The chief's notebook: turns running totals into history records."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpitrain.exchange.base import Totals
from mpitrain.exchange.tickets import TicketBook
from mpitrain.reporting.history import HistoryRecord
from mpitrain.reporting.progress import Progress
from mpitrain.reporting.throughput import Clock, Throughput


class Recorder:
    """Makes a record each ``every`` updates, and at each evaluation.

    Args:
        clock: the training clock.
        book: the run's tickets.
        every: updates between two records.
        stale: whether staleness is recorded (the mode has servers).
        undivided: whether the loss is a sum over the batch; it is recorded as a mean over samples all the same.
        progress: is told each record.
        keep: takes each record.
        seen: the totals at the last record of a run that is resumed, which began with ``samples``.
        samples: of the totals that the run goes on from.
    """

    def __init__(
        self,
        clock: Clock,
        book: TicketBook,
        every: int,
        stale: bool,
        undivided: bool,
        progress: Progress,
        keep: Callable[[HistoryRecord], None],
        seen: Totals | None = None,
        samples: int = 0,
    ) -> None:
        self._clock, self._book, self._every = clock, book, every
        self._stale, self._undivided = stale, undivided
        self._progress, self._keep = progress, keep
        self.seen = seen
        """The totals at the last record."""
        self._samples = samples
        self.throughput = Throughput(clock)

    def after_step(self, totals: Totals) -> None:
        """Note a step of the chief; make a record where one is due."""
        samples = int(totals.sums[2])
        self.throughput.step(samples - self._samples)
        self._samples = samples
        self.catch_up(totals)

    def catch_up(self, totals: Totals) -> None:
        """Make a record if one is due: before a checkpoint is, and after each step."""
        before = self.seen.version if self.seen else 0
        if totals.version // self._every > before // self._every:
            record = self._record("train", totals)
            self._keep(record)
            self._progress.train(record)

    def evaluation(self, totals: Totals, loss: float | None, accuracy: float | None) -> None:
        """Record an evaluation on the validation set."""
        record = self._record("eval", totals, loss, accuracy)
        self._keep(record)
        self._progress.evaluation(record)

    def _record(
        self, kind: str, totals: Totals, val_loss: float | None = None, val_accuracy: float | None = None
    ) -> HistoryRecord:
        seen = self.seen or Totals.empty(totals.sums.size)
        sums = totals.sums - seen.sums
        pushes = totals.pushes - seen.pushes
        samples = int(totals.sums[2])
        record = HistoryRecord(
            kind=kind,  # type: ignore[arg-type]
            step=totals.version,
            epoch=samples / self._book.samples,
            time=self._clock.seconds,
            loss=mean_loss(sums, self._undivided),
            accuracy=accuracy_of(sums),
            learning_rate=totals.learning_rate,
            samples=samples,
            samples_per_second=self.throughput.lap(),
            staleness_mean=(totals.staleness_sum - seen.staleness_sum) / pushes if self._stale and pushes else None,
            staleness_max=totals.staleness_max if self._stale else None,
            dropped=tuple(totals.dropped.tolist()) if self._stale else None,
            val_loss=val_loss,
            val_accuracy=val_accuracy,
        )
        self.seen = totals.copy()
        return record


def mean_loss(sums: np.ndarray, undivided: bool) -> float | None:
    """The mean loss of ``StepResult.sums``; over samples where the loss is a sum. None where nothing was counted."""
    count = sums[2] if undivided else sums[1]
    return float(sums[0] / count) if count else None


def accuracy_of(sums: np.ndarray) -> float | None:
    """The share of correct answers, or None where it is not counted."""
    return float(sums[3] / sums[2]) if sums.size > 3 and sums[2] else None
