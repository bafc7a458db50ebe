"""What server 0 counts of each worker: how stale its applied gradients were, and why others were dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum


class Drop(str, Enum):
    """Why a gradient was not applied."""

    NOT_FINITE = "not finite"
    LATE = "late"
    """Its step had enough of them before it came."""
    UNFINISHED = "of an unfinished step"
    """The run was stopped before its step had enough of them."""


@dataclass
class Tally:
    """Counts since the start of the run, by worker.

    Args:
        staleness: versions between pull and push → applied gradients.
        dropped: reason → gradients.
        clock_gap: the largest lead over the slowest worker's clock with which any worker was given a ticket.
    """

    staleness: dict[int, Counter[int]] = field(default_factory=dict)
    dropped: dict[int, Counter[str]] = field(default_factory=dict)
    clock_gap: int = 0

    @classmethod
    def of(cls, workers: Sequence[int]) -> Tally:
        """Nothing counted yet."""
        return cls({w: Counter() for w in workers}, {w: Counter() for w in workers})

    @property
    def histogram(self) -> dict[int, int]:
        """Staleness → applied gradients of all workers."""
        return dict(sorted(sum(self.staleness.values(), Counter[int]()).items()))
