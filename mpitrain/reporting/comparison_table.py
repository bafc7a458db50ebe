"""A comparison as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.table import Table

from mpitrain.reporting import formats as show
from mpitrain.reporting.comparison import Comparison, ModeResult
from mpitrain.reporting.standings import Figure, Spread, Standing, standings, verdict
from mpitrain.reporting.stream import console_on


def print_comparison(comparison: Comparison, stream: TextIO) -> None:
    """Print the table, a column for each contender, a row with its unit for each figure; and the verdict.

    Of several seeds it shows the mean, and the standard deviation in brackets. Contenders that do not fit beside each
    other follow below.
    """
    console = console_on(stream)
    console.print(f"{comparison.model} on {comparison.dataset}", style="bold")
    for group in _groups(standings(comparison.results), console.width):
        table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
        table.add_column("", no_wrap=True)
        for standing in group:
            table.add_column(standing.label, justify="right", no_wrap=True)
        for label, figure, form in _ROWS:
            table.add_row(label, *(_cell(standing.spread(figure), form) for standing in group))
        console.print(table)
    for target in sorted({result.target_accuracy for result in comparison.results}):
        console.print(
            f"target: a validation accuracy of {target:g}; evaluation counts neither as time nor in samples/s"
        )
    seeds = max((len(s.runs) for s in standings(comparison.results)), default=1)
    if seeds > 1:
        console.print(f"means of {seeds} seeds, in brackets their standard deviation")
    for line in verdict(comparison.results):
        console.print(line, highlight=False)


def _groups(table: Sequence[Standing], columns: int) -> list[list[Standing]]:
    """Contenders whose cells fit into lines of so many columns."""
    groups: list[list[Standing]] = []
    names = max(len(label) for label, _, _ in _ROWS)
    room = 0
    for standing in table:
        cells = [_cell(standing.spread(figure), form) for _, figure, form in _ROWS]
        width = 2 + max(map(len, [standing.label, *cells]))
        if width > room or not groups:
            groups.append([])
            room = columns - names - 1
        groups[-1].append(standing)
        room -= width
    return groups


def _cell(spread: Spread | None, form: Callable[[float | None], str]) -> str:
    if spread is None:
        return show.ABSENT
    text = form(spread.mean)
    if spread.deviation:
        text += f" ({form(spread.deviation)})"
    return text if spread.runs == spread.of else f"{text}, {spread.runs} of {spread.of}"


def _by(attribute: str) -> Figure:
    return lambda result: getattr(result, attribute)


def _share(kind: str) -> Figure:
    return lambda result: getattr(result.share, kind)


def _stale(low: int, high: float) -> Figure:
    """The part of the applied gradients whose staleness lies between."""

    def part(result: ModeResult) -> float | None:
        if not result.staleness:
            return None
        inside = sum(n for age, n in result.staleness.items() if low <= int(age) <= high)
        return inside / sum(result.staleness.values())

    return part


_ROWS: list[tuple[str, Figure, Callable[[float | None], str]]] = [
    ("workers", _by("workers"), show.count),
    ("servers", lambda r: r.servers or None, show.count),
    ("global batch (samples)", _by("global_batch"), show.count),
    ("updates", _by("updates"), show.count),
    ("samples", _by("samples"), show.count),
    ("throughput (samples/s)", _by("samples_per_second"), show.count),
    ("time to target (s)", _by("time_to_target"), lambda v: show.decimal(v, 1)),
    ("samples to target", _by("samples_to_target"), show.count),
    ("updates to target", _by("updates_to_target"), show.count),
    ("validation loss", _by("val_loss"), show.loss),
    ("validation accuracy", _by("val_accuracy"), show.accuracy),
    ("test accuracy", _by("test_accuracy"), show.accuracy),
    ("compute (% of time)", _share("compute"), show.percent),
    ("exchange (% of time)", _share("exchange"), show.percent),
    ("waiting (% of time)", _share("waiting"), show.percent),
    ("update (% of time)", _share("update"), show.percent),
    ("data per update (MB)", lambda r: r.bytes_per_update.data / 1e6, lambda v: show.decimal(v, 3)),
    ("headers per update (kB)", lambda r: r.bytes_per_update.headers / 1e3, lambda v: show.decimal(v, 3)),
    ("staleness, mean (updates)", _by("staleness_mean"), show.decimal),
    ("staleness, max (updates)", _by("staleness_max"), show.count),
    ("staleness 0 (% of gradients)", _stale(0, 0), show.percent),
    ("staleness 1-3 (% of gradients)", _stale(1, 3), show.percent),
    ("staleness 4-15 (% of gradients)", _stale(4, 15), show.percent),
    ("staleness over 15 (% of gradients)", _stale(16, float("inf")), show.percent),
]
