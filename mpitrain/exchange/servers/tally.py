"""What server 0 counts of each worker: how stale its applied gradients were, and why others were dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


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

    def encode(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "staleness": {str(w): dict(counts) for w, counts in self.staleness.items()},
            "dropped": {str(w): dict(reasons) for w, reasons in self.dropped.items()},
            "clock_gap": self.clock_gap,
        }

    @classmethod
    def decode(cls, values: Mapping[str, Any]) -> Tally:
        """What :meth:`encode` gave, from JSON too."""
        staleness = {
            int(w): Counter({int(value): count for value, count in counts.items()})
            for w, counts in values.get("staleness", {}).items()
        }
        dropped = {int(w): Counter(reasons) for w, reasons in values.get("dropped", {}).items()}
        return cls(staleness, dropped, values.get("clock_gap", 0))

    def after(self, earlier: Tally) -> Tally:
        """This tally and that of earlier parts of the run together."""

        def together(mine: dict[int, Counter[Any]], theirs: dict[int, Counter[Any]]) -> dict[int, Counter[Any]]:
            return {w: mine.get(w, Counter()) + theirs.get(w, Counter()) for w in sorted({*mine, *theirs})}

        return Tally(
            together(self.staleness, earlier.staleness),
            together(self.dropped, earlier.dropped),
            max(self.clock_gap, earlier.clock_gap),
        )

    @property
    def histogram(self) -> dict[int, int]:
        """Staleness → applied gradients of all workers."""
        return dict(sorted(sum(self.staleness.values(), Counter[int]()).items()))
