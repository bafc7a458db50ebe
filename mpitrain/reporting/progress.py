"""How far a run is, said by one rank: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TextIO

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from mpitrain.reporting import formats as show
from mpitrain.reporting.history import HistoryRecord
from mpitrain.reporting.stream import QuietStream, console_on, on_terminal

Monotonic = Callable[[], float]

_REFRESH_SECONDS = 0.1


class Progress(Protocol):
    """What the training loop tells; nothing here raises because nobody listens any more."""

    def train(self, record: HistoryRecord) -> None:
        """Updates were applied."""
        ...

    def evaluation(self, record: HistoryRecord) -> None:
        """The model was evaluated; ``record`` carries the result."""
        ...

    def note(self, text: str) -> None:
        """Say something else, before or after ``close`` too."""
        ...

    def close(self) -> None:
        """The training is over; closing twice is fine."""
        ...


class Silent:
    """The progress of every rank but one."""

    def train(self, record: HistoryRecord) -> None:
        """Say nothing."""

    def evaluation(self, record: HistoryRecord) -> None:
        """Say nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Nothing to end."""


class Total:
    """How far the run goes: a number of updates, or of samples.

    Args:
        updates: None when the run is measured in samples.
        samples: None when the run is measured in updates.
        evaluated: what evaluations are made on, for people.
    """

    def __init__(self, updates: int | None, samples: int | None, evaluated: str = "validation") -> None:
        self.evaluated = evaluated
        if (updates is None) == (samples is None):
            raise ValueError("exactly one of total_updates and total_samples is needed")
        self._updates = updates
        self.amount: int = updates or samples or 0

    def done(self, record: HistoryRecord) -> int:
        """The part of ``amount`` that is done."""
        return record.samples if self._updates is None else record.step

    def place(self, record: HistoryRecord) -> str:
        """``step 400/1100``, or ``step 400  sample 40,000/110,000``."""
        if self._updates is None:
            return f"step {record.step}  sample {record.samples:,}/{self.amount:,}"
        return f"step {record.step}/{self.amount}"


class Lines:
    """One line every ``every`` seconds at most, one for each evaluation, and one for the last record."""

    def __init__(self, total: Total, stream: TextIO, every: float, now: Monotonic) -> None:
        self._total = total
        self._stream = QuietStream(stream)
        self._every = every
        self._now = now
        self._next = float("-inf")
        self._unsaid: HistoryRecord | None = None

    def train(self, record: HistoryRecord) -> None:
        """Say it, or keep it until it is time again."""
        self._unsaid = record
        if self._now() >= self._next:
            self._say_unsaid()

    def evaluation(self, record: HistoryRecord) -> None:
        """Say it at once, after the training that led to it."""
        self._say_unsaid()
        self.note("  ".join([f"evaluation at {self._total.place(record)}", *_evaluated(record, self._total.evaluated)]))

    def note(self, text: str) -> None:
        """Write ``text`` as it is."""
        self._stream.write(f"{text}\n")

    def close(self) -> None:
        """Say how far the training came."""
        self._say_unsaid()

    def _say_unsaid(self) -> None:
        if self._unsaid is not None:
            self.note("  ".join([self._total.place(self._unsaid), *_trained(self._unsaid)]))
            self._unsaid = None
            self._next = self._now() + self._every


class Bar:
    """A bar that stays at the bottom of a terminal; evaluations and notes scroll above it.

    It is drawn by the calls themselves: a rank has no thread to spare for drawing.
    """

    def __init__(self, total: Total, stream: TextIO, now: Monotonic) -> None:
        self._total = total
        self._now = now
        self._drawn = float("-inf")
        self._console = console_on(stream)
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[told]}", markup=False),
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("step 0", total=total.amount, told="")
        self._bar.start()
        # rich hides the cursor until stop(), which a run that is killed never reaches.
        self._console.show_cursor(True)

    def train(self, record: HistoryRecord) -> None:
        """Move the bar, and draw it when that was not done a moment ago."""
        told = "  ".join(_measured(record))
        self._bar.update(
            self._task, completed=self._total.done(record), description=self._total.place(record), told=told
        )
        if self._now() >= self._drawn + _REFRESH_SECONDS:
            self._draw()

    def evaluation(self, record: HistoryRecord) -> None:
        """Print it above the bar."""
        self.note("  ".join([f"evaluation at {self._total.place(record)}", *_evaluated(record, self._total.evaluated)]))

    def note(self, text: str) -> None:
        """Print ``text`` above the bar, or plainly when that is gone."""
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Draw the last state and leave it standing."""
        self._bar.stop()

    def _draw(self) -> None:
        self._bar.refresh()
        self._drawn = self._now()


def make_progress(
    *,
    stream: TextIO,
    total_updates: int | None = None,
    total_samples: int | None = None,
    evaluated: str = "validation",
    every: float = 2.0,
    now: Monotonic = time.monotonic,
) -> Progress:
    """The progress of the one rank that speaks; the others use ``Silent``.

    Args:
        stream: where to speak: with a bar if that is a terminal, in lines if not.
        total_updates: updates of the whole run; either this or ``total_samples``.
        total_samples: samples of the whole run.
        evaluated: what evaluations are made on, for people.
        every: seconds between two lines about training.
        now: seconds from any fixed point.

    Raises:
        ValueError: when both totals are given, or neither.
    """
    total = Total(total_updates, total_samples, evaluated)
    return Bar(total, stream, now) if on_terminal(stream) else Lines(total, stream, every, now)


def _trained(record: HistoryRecord) -> list[str]:
    parts = [f"epoch {record.epoch:.2f}", *_measured(record), f"lr {record.learning_rate:.4g}"]
    if record.staleness_mean is not None:
        parts.append(f"staleness {record.staleness_mean:.2f}")
    return parts


def _measured(record: HistoryRecord) -> list[str]:
    """What fits beside a bar on 80 columns."""
    parts = []
    if record.loss is not None:
        parts.append(f"loss {show.loss(record.loss)}")
    if record.accuracy is not None:
        parts.append(f"accuracy {show.accuracy(record.accuracy)}")
    if record.samples_per_second is not None:
        parts.append(f"{show.count(record.samples_per_second)} samples/s")
    return parts


def _evaluated(record: HistoryRecord, split: str) -> list[str]:
    parts = [f"epoch {record.epoch:.2f}", f"{split} loss {show.loss(record.val_loss)}"]
    if record.val_accuracy is not None:
        parts.append(f"accuracy {show.accuracy(record.val_accuracy)}")
    parts.append(f"after {show.seconds(record.time)} s")
    return parts
