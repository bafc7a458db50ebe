"""Tables of side-by-side measurements, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One comparison: medians of both sides in samples/s per worker, and the ratio of each interleaved pair."""

    name: str
    ours: float
    other: float
    ratios: Sequence[float]

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)


def show(title: str, ours: str, other: str, rows: Sequence[Row]) -> str:
    """The table, with medians and the spread of the ratios."""
    lines = [
        f"{title}: samples/s per worker, medians of {len(rows[0].ratios)} interleaved repeats",
        "",
        f"| model | {ours} | {other} | ratio (min-max) |",
        "|---|---:|---:|---:|",
    ]
    for row in rows:
        spread = f"{min(row.ratios):.2f}-{max(row.ratios):.2f}"
        lines.append(f"| {row.name} | {row.ours:,.0f} | {row.other:,.0f} | **{row.ratio:.2f}** ({spread}) |")
    return "\n".join(lines) + "\n"
