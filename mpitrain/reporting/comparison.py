"""Several modes on the same data, side by side: one table, and ``compare.json``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.table import Table

from mpitrain.reporting import formats as show
from mpitrain.reporting.files import write_json
from mpitrain.reporting.history import HistoryRecord
from mpitrain.reporting.stream import console_on
from mpitrain.reporting.summary import BytesPerUpdate, Share, Summary


@dataclass(frozen=True, kw_only=True)
class ModeResult:
    """How one mode did. None stands for what does not apply, or was not reached.

    Args:
        label: the mode's name in table and plot.
        samples_per_second: of all workers together, as in ``Summary``.
        target_accuracy: validation accuracy to reach; the evaluations decide.
        time_to_target: seconds on the training clock until the first evaluation that reached it.
        samples_to_target: samples handed out until then.
        val_loss: of the last evaluation, as is ``val_accuracy``.
        history: the run's records, for the plot.
    """

    label: str
    workers: int
    servers: int
    global_batch: int
    updates: int
    samples: int
    samples_per_second: float | None
    target_accuracy: float
    time_to_target: float | None
    samples_to_target: int | None
    val_loss: float | None
    val_accuracy: float | None
    test_accuracy: float | None
    share: Share
    bytes_per_update: BytesPerUpdate
    staleness_mean: float | None
    staleness_max: int | None
    history: Sequence[HistoryRecord]

    @classmethod
    def of(cls, summary: Summary, history: Sequence[HistoryRecord], target_accuracy: float) -> ModeResult:
        """The result of a run from its summary and its history."""
        reached = first_reaching(history, target_accuracy)
        return cls(
            label=summary.mode,
            workers=summary.workers,
            servers=summary.servers,
            global_batch=summary.global_batch,
            updates=summary.updates,
            samples=summary.samples,
            samples_per_second=summary.samples_per_second,
            target_accuracy=target_accuracy,
            time_to_target=reached.time if reached else None,
            samples_to_target=reached.samples if reached else None,
            val_loss=summary.val_loss,
            val_accuracy=summary.val_accuracy,
            test_accuracy=summary.test_accuracy,
            share=summary.share,
            bytes_per_update=summary.bytes_per_update,
            staleness_mean=summary.staleness_mean,
            staleness_max=summary.staleness_max,
            history=history,
        )

    @property
    def evaluations(self) -> list[HistoryRecord]:
        """The records that carry a validation loss, in their order."""
        return [record for record in self.history if record.kind == "eval" and record.val_loss is not None]


@dataclass(frozen=True)
class Comparison:
    """The results of ``compare``, in the order in which the modes ran."""

    model: str
    dataset: str
    results: Sequence[ModeResult]


def first_reaching(history: Sequence[HistoryRecord], target_accuracy: float) -> HistoryRecord | None:
    """The first evaluation whose validation accuracy is at least ``target_accuracy``."""
    reached = (r for r in history if r.val_accuracy is not None and r.val_accuracy >= target_accuracy)
    return next(reached, None)


def print_comparison(comparison: Comparison, stream: TextIO) -> None:
    """Print the table: a column for each mode, a row with its unit for each figure."""
    console = console_on(stream)
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for result in comparison.results:
        table.add_column(result.label, justify="right", no_wrap=True)
    for label, cell in _ROWS:
        table.add_row(label, *map(cell, comparison.results))
    console.print(f"{comparison.model} on {comparison.dataset}", style="bold")
    console.print(table)
    for target in sorted({result.target_accuracy for result in comparison.results}):
        console.print(
            f"target: a validation accuracy of {target:g}; evaluation counts neither as time nor in samples/s"
        )


def write_comparison(run_dir: Path, comparison: Comparison) -> Path:
    """Write ``compare.json`` atomically, of the histories only the evaluations, and say where it is."""
    path = run_dir / "compare.json"
    results = [replace(result, history=result.evaluations) for result in comparison.results]
    write_json(path, replace(comparison, results=results))
    return path


_ROWS: list[tuple[str, Callable[[ModeResult], str]]] = [
    ("workers", lambda r: show.count(r.workers)),
    ("servers", lambda r: show.count(r.servers or None)),
    ("global batch (samples)", lambda r: show.count(r.global_batch)),
    ("updates", lambda r: show.count(r.updates)),
    ("samples", lambda r: show.count(r.samples)),
    ("throughput (samples/s)", lambda r: show.count(r.samples_per_second)),
    ("time to target (s)", lambda r: show.decimal(r.time_to_target, 1)),
    ("samples to target", lambda r: show.count(r.samples_to_target)),
    ("validation loss", lambda r: show.loss(r.val_loss)),
    ("validation accuracy", lambda r: show.accuracy(r.val_accuracy)),
    ("test accuracy", lambda r: show.accuracy(r.test_accuracy)),
    ("compute (% of time)", lambda r: show.percent(r.share.compute)),
    ("exchange (% of time)", lambda r: show.percent(r.share.exchange)),
    ("waiting (% of time)", lambda r: show.percent(r.share.waiting)),
    ("update (% of time)", lambda r: show.percent(r.share.update)),
    ("data per update (MB)", lambda r: show.decimal(r.bytes_per_update.data / 1e6, 3)),
    ("headers per update (kB)", lambda r: show.decimal(r.bytes_per_update.headers / 1e3, 3)),
    ("staleness, mean (updates)", lambda r: show.decimal(r.staleness_mean)),
    ("staleness, max (updates)", lambda r: show.count(r.staleness_max)),
]
