"""Runs of the same contender with several seeds, taken together: means, spreads, and a verdict in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpitrain.reporting import formats as show
from mpitrain.reporting.comparison import ModeResult

BEYOND = 2.0
"""Standard errors of a difference from which it counts as one."""

Figure = Callable[[ModeResult], float | None]


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of a figure.

    Args:
        mean: over the runs that have it.
        deviation: None of a single run.
        runs: that have it.
        of: all runs.
    """

    mean: float
    deviation: float | None
    runs: int
    of: int

    @classmethod
    def over(cls, values: Sequence[float | None]) -> Spread | None:
        """Of the values that are there; None where there is none."""
        found = [value for value in values if value is not None]
        if not found:
            return None
        deviation = statistics.stdev(found) if len(found) > 1 else None
        return cls(statistics.fmean(found), deviation, len(found), len(values))

    def apart(self, other: Spread) -> bool | None:
        """Whether the means differ by more than ``BEYOND`` standard errors of their difference; None: unknown."""
        error = self.error(other)
        return None if error is None else abs(self.mean - other.mean) > BEYOND * error

    def error(self, other: Spread) -> float | None:
        """The standard error of the difference of the means (Welch, Biometrika 34, 1947)."""
        if self.deviation is None or other.deviation is None:
            return None
        return math.sqrt(self.deviation**2 / self.runs + other.deviation**2 / other.runs)


@dataclass(frozen=True)
class Standing:
    """A contender with all its runs."""

    label: str
    runs: Sequence[ModeResult]

    def spread(self, figure: Figure) -> Spread | None:
        """Of a figure over the runs."""
        return Spread.over([figure(run) for run in self.runs])

    @property
    def reached(self) -> bool:
        """Whether every run reached the target."""
        return all(run.time_to_target is not None for run in self.runs)


def standings(results: Sequence[ModeResult]) -> list[Standing]:
    """The runs by label, in the order in which the labels first ran."""
    by_label: dict[str, list[ModeResult]] = {}
    for result in results:
        by_label.setdefault(result.label, []).append(result)
    return [Standing(label, runs) for label, runs in by_label.items()]


def verdict(results: Sequence[ModeResult]) -> list[str]:
    """What the figures say, a sentence each: who reached the target first, and who ended most accurate."""
    table = standings(results)
    if len(table) < 2:
        return []
    target = f"a validation accuracy of {results[0].target_accuracy:g}"
    lines = _ranked(
        [s for s in table if s.reached],
        lambda run: run.time_to_target,
        show.seconds,
        f"reached {target} first: after",
        "s",
        lowest=True,
    )
    short = [s for s in table if not s.reached]
    if short and len(short) == len(table):
        lines.append(f"None reached {target} with every seed.")
    lines += [
        f"{s.label} reached it with {sum(r.time_to_target is not None for r in s.runs)} of "
        f"{show.plural(len(s.runs), 'seed')}."
        for s in short
    ]
    return lines + _ranked(table, lambda run: run.val_accuracy, show.accuracy, "ended most accurate:", "", lowest=False)


def _ranked(
    table: Sequence[Standing], figure: Figure, form: Callable[[float], str], did: str, unit: str, lowest: bool
) -> list[str]:
    found = [(standing.label, spread) for standing in table if (spread := standing.spread(figure)) is not None]
    if not found:
        return []
    sign = 1 if lowest else -1
    found.sort(key=lambda item: sign * item[1].mean)
    unit = f" {unit}" if unit else ""
    first, best = found[0]
    seeds = f" (mean of {best.runs} seeds)" if best.runs > 1 else ""
    lines = [f"{first} {did} {form(best.mean)}{unit}{seeds}."]
    within = [label for label, spread in found[1:] if spread.apart(best) is False]
    unknown = [label for label, spread in found[1:] if spread.apart(best) is None]
    for label, spread in found[1:]:
        if spread.apart(best):
            error = spread.error(best)
            assert error is not None
            lines.append(
                f"  {label} follows by {form(abs(spread.mean - best.mean))}{unit}, beyond the spread of seeds "
                f"({form(BEYOND * error)}{unit})."
            )
    if within:
        lines.append(f"  Not to be told apart from it, within the spread of seeds: {', '.join(within)}.")
    if unknown:
        told = ", ".join(f"{label} by {form(abs(s.mean - best.mean))}{unit}" for label, s in found if label in unknown)
        lines.append(f"  Then follow {told}; a single seed does not tell whether that is chance (--seeds 3).")
    return lines
