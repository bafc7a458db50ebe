"""The end of a run in one object, one file, and a screenful of text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpitrain.reporting import formats as show
from mpitrain.reporting.files import write_json

WIDTH = 100


SUMMARY = "summary.json"


@dataclass(frozen=True)
class Share:
    """Where the training clock went, as fractions that add up to 1."""

    compute: float
    exchange: float
    waiting: float
    update: float


@dataclass(frozen=True)
class BytesPerUpdate:
    """Bytes sent by all ranks for one update: the slices, and apart from them headers with their tails."""

    data: float
    headers: float


@dataclass(frozen=True)
class Fit:
    """A sum over all ranks takes ``latency_seconds``, and one second for each ``bytes_per_second`` of the vector."""

    latency_seconds: float
    bytes_per_second: float | None


@dataclass(frozen=True)
class FailedSave:
    """A step that could not be saved, and why."""

    step: int
    reason: str


@dataclass(frozen=True)
class Saved:
    """What came of a run's checkpoints.

    Args:
        checkpoints: how many became whole.
        nbytes: of the last one.
        pause_seconds: while training stood still for them.
        failed: those that could not be written.
    """

    checkpoints: int = 0
    nbytes: int = 0
    pause_seconds: float = 0.0
    failed: tuple[FailedSave, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a run went that came to an agreed end. None stands for what does not apply or was not measured.

    Args:
        status: ``complete``, or ``preempted`` where a signal asked for an early end.
        cause: of an early end.
        batch_size: samples of one worker's batch; ``global_batch`` those of all workers' batches together.
        samples: samples handed out; ``epochs`` the same in passes over the data.
        samples_per_second: of all workers on the training clock, without start-up and the first ten steps.
        wall_seconds: from the start of the process; ``train_seconds`` the training clock, without evaluation.
        staleness_mean: versions between pull and push; like ``staleness_max`` None outside servers.
        staleness: versions between pull and push → applied gradients; ``staleness_by_worker`` the same of each worker.
        clock_gap_max: the most settled batches by which a worker was ahead of the slowest when it began a step; None
            where workers step together.
        dropped: worker → reason → gradients computed but not applied.
        threads: TensorFlow's threads on each rank.
        choices: what was chosen by measuring, as explicit values.
        allreduce: way of summing → what was measured of it before the choice.
        versions: package or library → version.
        peak_memory: rank → the most bytes that it held in memory.
        peak_memory_by_role: ``server`` and ``worker`` → the most bytes that any rank of that role held. Memory that
            ranks share counts at each that has touched it.
        resumed: steps at which the run was resumed. What follows from clocks and counts then covers all its parts, but
            for speed, ``share`` and ``bytes_per_update``, which are of the last one.
        saved: its checkpoints, of the last part alone.
    """

    mode: str
    model: str
    dataset: str
    workers: int
    servers: int
    batch_size: int
    global_batch: int
    updates: int
    samples: int
    epochs: float
    train_loss: float | None
    val_loss: float | None
    val_accuracy: float | None
    test_loss: float | None
    test_accuracy: float | None
    samples_per_second: float | None
    samples_per_second_per_worker: float | None
    wall_seconds: float
    train_seconds: float
    share: Share
    bytes_per_update: BytesPerUpdate
    parameter_count: int
    threads: int
    staleness_mean: float | None = None
    staleness_max: int | None = None
    staleness: Mapping[int, int] = field(default_factory=dict)
    staleness_by_worker: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    clock_gap_max: int | None = None
    dropped: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    choices: Mapping[str, Any] = field(default_factory=dict)
    allreduce: Mapping[str, Fit] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    peak_memory: Mapping[int, int] = field(default_factory=dict)
    peak_memory_by_role: Mapping[str, int] = field(default_factory=dict)
    resumed: tuple[int, ...] = ()
    saved: Saved | None = None
    status: str = "complete"
    cause: str | None = None


@dataclass(frozen=True, kw_only=True)
class BrokenOff:
    """What ``summary.json`` says of a run that did not come to its end.

    Args:
        status: ``failed``, ``stalled`` or ``interrupted``.
        cause: one sentence.
        exit_code: of the ranks.
        rank: where it began, where that is one rank.
        step: where that rank was.
        peak_memory: rank → the most bytes that it was known to hold in memory.
        advice: how the run is resumed, where it was saved.
    """

    status: str
    cause: str
    exit_code: int
    rank: int | None
    step: int
    mode: str
    model: str
    peak_memory: Mapping[int, int] = field(default_factory=dict)
    advice: str | None = None


def write_summary(run_dir: Path, summary: Summary | BrokenOff, replace: bool = True, durable: bool = True) -> Path:
    """Write ``summary.json`` as :func:`~mpitrain.reporting.files.write_whole` does, and say where it is."""
    path = run_dir / SUMMARY
    write_json(path, summary, replace, durable)
    return path


def render_summary(summary: Summary) -> str:
    """The summary as plain lines of at most 100 columns, the same on a terminal and in a file."""
    lines = []
    for label, text in _rows(summary):
        indent = f"{label:<12}"
        lines += textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent))
    return "\n".join(lines)


def _rows(s: Summary) -> list[tuple[str, str]]:
    """Label and text of each line; lines with nothing to say are left out."""
    ranks = show.plural(s.workers, "worker")
    if s.servers:
        ranks = f"{show.plural(s.servers, 'server')}, {ranks}"
    rows = [
        ("status", "" if s.status == "complete" else f"{s.status}: {s.cause}"),
        ("mode", f"{s.mode}, {ranks}, {show.plural(s.threads, 'thread')} each"),
        ("model", f"{s.model}, {s.parameter_count:,} parameters, on {s.dataset}"),
        ("batch", f"{s.batch_size:,} per worker, {s.global_batch:,} global"),
        ("trained", f"{show.plural(s.updates, 'update')}, {s.samples:,} samples, {s.epochs:.2f} epochs"),
        ("loss", _known(train=s.train_loss, validation=s.val_loss, test=s.test_loss, form=show.loss)),
        ("accuracy", _known(validation=s.val_accuracy, test=s.test_accuracy, form=show.accuracy)),
        ("speed", _speed(s)),
        ("time", f"{show.seconds(s.wall_seconds)} s in all, {show.seconds(s.train_seconds)} s training"),
        ("share", ", ".join(f"{name} {show.percent(part)} %" for name, part in vars(s.share).items())),
        ("sent", f"{_bytes(s.bytes_per_update)} per update"),
        ("memory", _memory(s.peak_memory_by_role)),
        ("staleness", _staleness(s)),
        ("applied", _applied(s) if s.clock_gap_max is not None or s.dropped else ""),
        (
            "dropped",
            "; ".join(f"worker {worker}: {_reasons(why)}" for worker, why in s.dropped.items() if why),
        ),
        ("resumed", f"at step {', '.join(f'{step:,}' for step in s.resumed)}" if s.resumed else ""),
        ("saved", _saved(s.saved) if s.saved else ""),
        ("chosen", _pairs(s.choices, "=")),
        ("versions", _pairs(s.versions, " ")),
    ]
    return [(label, text) for label, text in rows if text]


def _known(form: Any, **values: float | None) -> str:
    return ", ".join(f"{name} {form(value)}" for name, value in values.items() if value is not None)


def _speed(s: Summary) -> str:
    if s.samples_per_second is None:
        return "not measured: the first 10 steps do not count, and there were no more"
    each = show.count(s.samples_per_second_per_worker)
    return f"{show.count(s.samples_per_second)} samples/s, {each} per worker (without start-up and 10 steps)"


def _memory(peaks: Mapping[str, int]) -> str:
    told = ", ".join(f"{show.size(peak)} of a {role}" for role, peak in peaks.items())
    return f"at most {told}" if told else ""


def _staleness(s: Summary) -> str:
    if s.staleness_mean is None:
        return ""
    parts = [f"mean {s.staleness_mean:.2f}", f"max {s.staleness_max}"]
    if s.staleness_max:
        parts += [f"{span}: {show.percent(part)} %" for span, part in _spans(s.staleness).items()]
    return ", ".join(parts)


def _spans(histogram: Mapping[int, int]) -> dict[str, float]:
    """The shares of 0, 1, 2-3, 4-7, ..., those that occur."""
    found: dict[str, float] = {}
    for value, count in sorted(histogram.items()):
        low = 1 << (value.bit_length() - 1) if value else 0
        span = str(value) if value < 2 else f"{low}-{2 * low - 1}"
        found[span] = found.get(span, 0.0) + count / sum(histogram.values())
    return found


def _applied(s: Summary) -> str:
    told = [f"worker {worker}: {sum(counts.values()):,}" for worker, counts in s.staleness_by_worker.items()]
    if s.clock_gap_max is not None:
        told.append(f"the fastest at most {show.plural(s.clock_gap_max, 'step')} ahead")
    return ", ".join(told)


def _saved(saved: Saved) -> str:
    told = []
    if saved.checkpoints:
        number = show.plural(saved.checkpoints, "checkpoint")
        paused = show.seconds(saved.pause_seconds)
        told.append(f"{number} of {show.size(saved.nbytes)}, for which training paused {paused} s")
    steps: dict[str, list[str]] = {}
    for each in saved.failed:
        steps.setdefault(each.reason, []).append(f"{each.step:,}")
    for reason, those in steps.items():
        many = f"{', '.join(those[:-1])} and {those[-1]}" if len(those) > 1 else those[0]
        told.append(f"step{'s' * (len(those) > 1)} {many} could not be saved ({reason})")
    return "; ".join(told)


def _bytes(sent: BytesPerUpdate) -> str:
    return f"{show.size(sent.data)} of data and {show.size(sent.headers)} of headers"


def _reasons(why: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {reason}" for reason, number in why.items())


def _pairs(values: Mapping[str, Any], joint: str) -> str:
    return ", ".join(f"{name}{joint}{value}" for name, value in values.items())
