"""Several ways to train on the same data, side by side: what is known of each run, and ``compare.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from mpitrain.errors import InputError
from mpitrain.reporting.files import plain, write_json
from mpitrain.reporting.history import HISTORY, HistoryRecord, read_history
from mpitrain.reporting.summary import SUMMARY, BytesPerUpdate, Share, Summary

COMPARISON = "comparison.json"
"""In a comparison's folder from its first run on: what its runs have in common."""


@dataclass(frozen=True, kw_only=True)
class ModeResult:
    """How one run did. None stands for what does not apply, or was not reached.

    Args:
        label: the contender's name in table and plot: its mode, and options.
        seed: of the run.
        samples_per_second: of all workers together, as in ``Summary``.
        target_accuracy: validation accuracy to reach; the evaluations decide.
        time_to_target: seconds on the training clock until the first evaluation that reached it.
        samples_to_target: samples handed out until then.
        updates_to_target: updates applied until then.
        val_loss: of the last evaluation, as is ``val_accuracy``.
        staleness: versions between pull and push -> applied gradients.
        history: the run's records, for the plot.
    """

    label: str
    seed: int
    workers: int
    servers: int
    global_batch: int
    updates: int
    samples: int
    samples_per_second: float | None
    target_accuracy: float
    time_to_target: float | None
    samples_to_target: int | None
    updates_to_target: int | None
    val_loss: float | None
    val_accuracy: float | None
    test_accuracy: float | None
    share: Share
    bytes_per_update: BytesPerUpdate
    staleness_mean: float | None
    staleness_max: int | None
    staleness: Mapping[int, int]
    history: Sequence[HistoryRecord]

    @classmethod
    def of(
        cls, summary: Summary, history: Sequence[HistoryRecord], target_accuracy: float, label: str = "", seed: int = 0
    ) -> ModeResult:
        """The result of a run from its summary and its history; ``label`` is the mode by default."""
        reached = first_reaching(history, target_accuracy)
        return cls(
            label=label or summary.mode,
            seed=seed,
            workers=summary.workers,
            servers=summary.servers,
            global_batch=summary.global_batch,
            updates=summary.updates,
            samples=summary.samples,
            samples_per_second=summary.samples_per_second,
            target_accuracy=target_accuracy,
            time_to_target=reached.time if reached else None,
            samples_to_target=reached.samples if reached else None,
            updates_to_target=reached.step if reached else None,
            val_loss=summary.val_loss,
            val_accuracy=summary.val_accuracy,
            test_accuracy=summary.test_accuracy,
            share=summary.share,
            bytes_per_update=summary.bytes_per_update,
            staleness_mean=summary.staleness_mean,
            staleness_max=summary.staleness_max,
            staleness=summary.staleness,
            history=history,
        )

    @classmethod
    def read(cls, run_dir: Path, target_accuracy: float, label: str, seed: int) -> ModeResult | None:
        """The result of the run that ``run_dir`` holds; None where it is not complete.

        Raises:
            InputError: its files are not those of a run.
        """
        path = run_dir / SUMMARY
        if not path.exists():
            return None
        try:
            told = json.loads(path.read_bytes())
            if told["status"] != "complete":
                return None
            # NaN and the infinities stand there as words.
            summary = {name: float(value) if value in ("nan", "inf", "-inf") else value for name, value in told.items()}
            summary |= {"share": Share(**told["share"]), "bytes_per_update": BytesPerUpdate(**told["bytes_per_update"])}
            summary["staleness"] = {int(versions): count for versions, count in told["staleness"].items()}
            history = read_history(run_dir / HISTORY).records
            return cls.of(SimpleNamespace(**summary), history, target_accuracy, label, seed)  # type: ignore[arg-type]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is not a run's summary ({error}): remove {run_dir}, and the run is made anew"
            ) from None

    @property
    def evaluations(self) -> list[HistoryRecord]:
        """The records that carry a validation loss, in their order."""
        return [record for record in self.history if record.kind == "eval" and record.val_loss is not None]


@dataclass(frozen=True)
class Comparison:
    """The results of ``compare``, in the order in which the runs were made."""

    model: str
    dataset: str
    results: Sequence[ModeResult]


def first_reaching(history: Sequence[HistoryRecord], target_accuracy: float) -> HistoryRecord | None:
    """The first evaluation whose validation accuracy is at least ``target_accuracy``."""
    reached = (r for r in history if r.val_accuracy is not None and r.val_accuracy >= target_accuracy)
    return next(reached, None)


def write_comparison(run_dir: Path, comparison: Comparison, verdict: Sequence[str] = ()) -> Path:
    """Write ``compare.json`` atomically, of the histories only the evaluations, and say where it is."""
    path = run_dir / "compare.json"
    results = [replace(result, history=result.evaluations) for result in comparison.results]
    write_json(path, plain(replace(comparison, results=results)) | {"verdict": list(verdict)})
    return path
