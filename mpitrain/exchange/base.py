"""What every exchange shares: the plan of a run, the running totals, and where the time and the bytes went."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Protocol

import numpy as np

from mpitrain.exchange.tickets import Place, Ticket, TicketBook
from mpitrain.parameters.optimizers import SliceOptimizer
from mpitrain.parameters.step import StepResult


class Cut(IntEnum):
    """Why all ranks meet: on the way, at the end, or because somebody asked for an early end."""

    ON_THE_WAY = 0
    LAST = 1
    STOPPED = 2


OnCut = Callable[[int, Cut], bool]
"""``on_cut(version, why)``: every rank calls it with the same parameters in hand; True ends the run there."""


@dataclass(frozen=True)
class Plan:
    """What all ranks know of a run before it starts.

    Args:
        book: the tickets; a ticket is a global batch in the synchronous modes, one worker's batch otherwise.
        cuts: versions at which all ranks meet, ascending; the last one ends the run.
        learning_rate: the effective rate for the update that makes version ``v + 1`` out of ``v``.
        sums: length of ``StepResult.sums``.
        state: length of ``StepResult.state``.
        undivided: whether gradients of summed losses are added and not averaged.
        max_bad_gradients: how many gradients with NaN or infinity are dropped before the run ends.
        stopping: whether this rank has been asked to end the run early; the ranks agree on the step.
        due: asked between steps, on every rank: whether all should meet as soon as they can. With servers only what
            server 0 says counts.
        totals: what had been applied before a resumed run goes on; None for nothing.
    """

    book: TicketBook
    cuts: tuple[int, ...]
    learning_rate: Callable[[int], float]
    sums: int
    state: int = 0
    undivided: bool = False
    max_bad_gradients: int = 0
    stopping: Callable[[], bool] = lambda: False
    due: Callable[[], bool] = lambda: False
    totals: Totals | None = None

    def begin(self, workers: int = 0) -> Totals:
        """The totals to go on from."""
        return Totals.empty(self.sums, workers) if self.totals is None else self.totals.copy()


@dataclass
class Totals:
    """What has been applied since the start of the run, added up over all workers.

    Args:
        sums: ``StepResult.sums`` of every applied gradient.
        pushes: number of applied gradients.
        staleness_sum: versions between pull and push, added over the applied gradients.
        staleness_max: the largest of them.
        bad: gradients dropped because they held NaN or infinity.
        learning_rate: the effective rate of the last update.
        dropped: with servers, how many gradients of each worker were dropped for any reason, in rank order.
    """

    sums: np.ndarray
    version: int = 0
    pushes: int = 0
    staleness_sum: float = 0.0
    staleness_max: int = 0
    bad: int = 0
    learning_rate: float = 0.0
    dropped: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    HEAD = 6

    @classmethod
    def empty(cls, sums: int, workers: int = 0) -> Totals:
        """Nothing applied yet; ``sums`` is the length of ``StepResult.sums``."""
        return cls(np.zeros(sums), dropped=np.zeros(workers, np.int64))

    def copy(self) -> Totals:
        """The same, apart."""
        return replace(self, sums=self.sums.copy(), dropped=self.dropped.copy())

    def add(self, sums: np.ndarray, staleness: int) -> None:
        """Count one applied gradient."""
        self.sums += sums
        self.pushes += 1
        self.staleness_sum += staleness
        self.staleness_max = max(self.staleness_max, staleness)

    def encode(self, out: np.ndarray) -> None:
        """Write into float64 ``out`` of length ``HEAD + len(dropped) + len(sums)``."""
        out[: self.HEAD] = (
            self.version,
            self.pushes,
            self.staleness_sum,
            self.staleness_max,
            self.bad,
            self.learning_rate,
        )
        split = self.HEAD + self.dropped.size
        out[self.HEAD : split] = self.dropped
        out[split:] = self.sums

    @classmethod
    def decode(cls, values: np.ndarray, workers: int = 0) -> Totals:
        """What :meth:`encode` wrote, with ``workers`` counts of dropped gradients."""
        version, pushes, stale_sum, stale_max, bad, rate = values[: cls.HEAD].tolist()
        split = cls.HEAD + workers
        sums, dropped = values[split:].copy(), values[cls.HEAD : split].astype(np.int64)
        return cls(sums, int(version), int(pushes), stale_sum, int(stale_max), int(bad), rate, dropped)


@dataclass
class Spent:
    """Seconds of one rank by kind: computing, moving data, waiting for others, updating parameters."""

    compute: float = 0.0
    exchange: float = 0.0
    waiting: float = 0.0
    update: float = 0.0

    def shares(self) -> dict[str, float]:
        """Each kind's fraction of the whole; zeros before anything was spent."""
        whole = self.compute + self.exchange + self.waiting + self.update
        return {name: value / whole if whole else 0.0 for name, value in vars(self).items()}


@dataclass
class Traffic:
    """Bytes that this rank has sent: parameter-sized data apart from headers with their float64 tails."""

    data: int = 0
    headers: int = 0


@dataclass
class Stopwatch:
    """Splits the time of one rank into laps."""

    mark: float = field(default_factory=time.perf_counter)

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.perf_counter()
        spent, self.mark = now - self.mark, now
        return spent


@dataclass(frozen=True)
class Portion:
    """What one rank holds of the run's vectors, to be saved or restored while all stands still.

    Args:
        part: of the parameter vector.
        parameters: that slice.
        optimizer: of the same slice.
        shared: whether every rank holds the same.
        kept: what the policy keeps beside, by name, each of the slice's shape; to be read, and written into.
    """

    part: slice
    parameters: np.ndarray
    optimizer: SliceOptimizer
    shared: bool = False
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)


class Exchange(Protocol):
    """How one worker agrees with the others; the training loop knows nothing else of the mode."""

    parameters: np.ndarray
    """What the next gradient step reads, shape ``(layout.size,)``."""
    state: np.ndarray | None
    """float64: the model's float state as agreed with the last ``finish``; None where it is not agreed on then."""
    totals: Totals
    spent: Spent
    dropped: int
    """Gradients of this rank that were not applied because they held NaN or infinity."""

    @property
    def traffic(self) -> Traffic:
        """Bytes that this rank has sent."""
        ...

    def start(self) -> Ticket | None:
        """The first ticket."""
        ...

    def ready(self, part: slice) -> None:
        """Note that ``part`` of the gradient is final, while the step still computes."""
        ...

    def finish(self, result: StepResult) -> Ticket | None:
        """Hand the step's result over; return with new parameters and the next ticket, or None at the end."""
        ...

    def portion(self) -> Portion | None:
        """What this rank holds of the vectors that a checkpoint keeps; None where others hold all."""
        ...

    def place(self) -> Place | None:
        """At a cut, how far the run has come in its data, where this rank knows it; rank 0 does."""
        ...

    def close(self) -> None:
        """Give back what the exchange holds; every rank must call it."""
        ...


def bad_gradient(rank_name: str, step: int) -> str:
    """The sentence for a gradient that cannot be applied."""
    return (
        f"the loss or a gradient became NaN or infinite on {rank_name} at step {step}: lower --learning-rate or add "
        "--warmup-steps (what was saved before stays), or allow some with --max-bad-gradients"
    )
