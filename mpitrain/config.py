"""One run as one typed object, and what must be true of it before anything starts."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mpitrain.errors import InputError

Mode = Literal["allreduce", "ps-sync", "ps-async"]
WireDtype = Literal["float32", "float16", "bfloat16"]
MODES: tuple[str, ...] = ("allreduce", "ps-sync", "ps-async")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides what a run computes.

    Args:
        mode: How ranks agree: allreduce (all ranks work), ps-sync or ps-async (the first ranks are parameter servers).
        model: mlp, cnn, lstm, or PACKAGE.MODULE:FUNCTION, a function of yours that returns a Keras model.
        servers: Number of parameter servers, ranks 0 to SERVERS-1 if not placed otherwise; of no effect with allreduce.
        server_placement: Which ranks are the servers: the first ones, or spread: the first of each host in turn.
        transport: How gradients and parameters get to and from servers: mpi (messages), shared (through the memory of
            one node), both (through memory within a node, as messages between nodes), or auto (as the ranks lie).
        backup_workers: With ps-sync, gradients of a step that are not waited for: the others make the update, these are
            dropped if they come late.
        staleness_bound: With ps-async, how many batches a worker may be ahead of the slowest one when it begins the
            next; without a bound by default.
        soft_quorum: With ps-async, gradients that make an update, whoever sent them; nobody waits for it.
        staleness_damping: With ps-async, divide a gradient by its staleness, in updates.
        delay_compensation: With ps-async, correct a gradient for the updates since its parameters, by so much (for
            example 0.04, or 2 with --adaptive-compensation).
        adaptive_compensation: Divide LAMBDA by the root of the mean square of the gradients, element by element.
        local_steps: Steps that a worker makes alone, with an optimizer of its own, before it hands over how far it has
            come; the global batch grows with them.
        elastic: Keep each worker's parameters, and pull them and the shared ones together by this part of their
            difference, where --local-steps end.
        pipeline: With servers, compute the next gradient while the one before is pushed and applied: each is
            computed from parameters that are one update older.
        train_steps: Updates to apply, counted over all workers together (the global steps of TensorFlow 1).
        epochs: Passes over the data by all workers together; 2 where neither this nor --train-steps is given.
        batch_size: Samples per worker and step; by default the model's own (mlp and cnn 100, lstm 128).
        accumulate: Batches of each worker whose gradients are added up before they are exchanged; the global batch
            grows with them.
        learning_rate: Base learning rate; by default the model's own (mlp 0.01, cnn and lstm 0.001).
        lr_scaling: Multiply the rate by the workers that share an update (linear), by their root (sqrt), or not (none).
        warmup_steps: Updates over which the rate rises linearly to its full value.
        lr_schedule: constant, cosine (to zero at the end), or step:EVERY:FACTOR (times FACTOR each EVERY updates).
        optimizer: Any Keras optimizer by name; by default the model's own (adam).
        seed: Of initial weights, the order of the data and dropout.
        dataset: mnist, or mnist-sample (7,000 images that come with the package).
        data_dir: Folder with the four IDX files, gzip or not, of MNIST or anything of its form.
        eval_every: Evaluate each so many updates (500) or epochs (1ep, 0.5ep); 0 evaluates at the end only.
        eval_on: Evaluate on the validation set, or on the test set (which the end of a run evaluates in any case).
        log_every: Updates between two lines of progress and of the history.
        run_dir: Folder for what the run writes; by default runs/TIME-MODE-MODEL, or that of the run that is resumed.
        checkpoint_every: Save each so many updates (500), epochs (1ep) or seconds (600s), and the end of the run; 0
            saves only when a signal asks for an early end.
        keep: How many checkpoints are kept, the newest ones.
        resume: Go on from a checkpoint: a run directory (its newest whole one), a checkpoint's folder, or auto (the
            newest whole one in --run-dir, the beginning where there is none). Other options are the run's own where
            they are not given.
        threads: Threads of each worker; by default the visible cores shared among the workers of the node.
        jit: Compile the gradient step with XLA: on, off, or auto (measured at the start).
        allreduce: How gradients are summed where all ranks work: mpi, ring, halving-doubling, shared (through the
            memory of one node), hierarchical (shared within each node, ring between nodes), horovod (where that is
            installed), or auto (measured at the start).
        wire_dtype: With allreduce, the type in which gradients travel between ranks: float32, or narrowed to float16 or
            bfloat16 and summed in float32.
        shard_optimizer: With allreduce, each rank applies the optimizer to its own slice and the others read what comes
            out (on), each to everything (off), or auto (on where the all-reduce and the optimizer allow it).
        max_bad_gradients: Gradients with NaN or infinity that are dropped before the run ends.
        inject_delay: For tests: RANK:MILLISECONDS[:PROBABILITY] makes a worker sleep before its steps, or some of them.
        from_tf1: Start the mlp or lstm with the initial weights and loss of the TensorFlow 1 programs.
        allow_gpu: Do not hide GPUs from TensorFlow.
        stall_timeout: Seconds without progress of a rank after which the others end the run (a warning comes at a
            third).
        start_timeout: The same until the first step is done, for imports, reading data, making and compiling the model.
    """

    mode: Mode = "allreduce"
    model: str = "cnn"
    servers: int = 1
    server_placement: Literal["first", "spread"] = "first"
    transport: Literal["auto", "mpi", "shared", "both"] = "auto"
    backup_workers: int = 0
    staleness_bound: int | None = None
    soft_quorum: int = 1
    staleness_damping: bool = False
    delay_compensation: float | None = None
    adaptive_compensation: bool = False
    local_steps: int = 1
    elastic: float | None = None
    pipeline: bool = False
    train_steps: int | None = None
    epochs: float | None = None
    batch_size: int | None = None
    accumulate: int = 1
    learning_rate: float | None = None
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    warmup_steps: int = 0
    lr_schedule: str = "constant"
    optimizer: str | None = None
    seed: int = 0
    dataset: str = "mnist"
    data_dir: str | None = None
    eval_every: str = "1ep"
    eval_on: Literal["validation", "test"] = "validation"
    log_every: int = 100
    run_dir: str | None = None
    checkpoint_every: str = "600s"
    keep: int = 2
    resume: str | None = None
    threads: int | None = None
    jit: Literal["auto", "on", "off"] = "auto"
    allreduce: Literal["auto", "mpi", "ring", "halving-doubling", "shared", "hierarchical", "horovod"] = "auto"
    wire_dtype: WireDtype = "float32"
    shard_optimizer: Literal["auto", "on", "off"] = "auto"
    max_bad_gradients: int = 0
    inject_delay: str | None = None
    from_tf1: bool = False
    allow_gpu: bool = False
    stall_timeout: float = 60.0
    start_timeout: float = 300.0

    def validate(self) -> None:
        """Check every value that can be checked without data, model or ranks.

        Raises:
            InputError: at the first that is wrong.
        """
        for field in dataclasses.fields(self):
            allowed = _choices(str(field.type))
            value = getattr(self, field.name)
            if allowed and value not in allowed:
                raise InputError(f"{_flag(field.name)} is {value!r} but must be one of {', '.join(allowed)}")
        if self.train_steps is not None and self.epochs is not None:
            raise InputError("--train-steps and --epochs are both given: use one of them to say how long to train")
        counts = ("servers", "train_steps", "batch_size", "accumulate", "threads", "log_every", "keep")
        for name in (*counts, "soft_quorum", "local_steps"):
            _check(name, getattr(self, name), lambda v: 1 <= v < 2**31, "at least 1 and below 2**31")
        for name in ("backup_workers", "staleness_bound", "warmup_steps", "seed", "max_bad_gradients"):
            _check(name, getattr(self, name), lambda v: 0 <= v < 2**31, "at least 0 and below 2**31")
        for name in ("stall_timeout", "start_timeout"):
            _check(name, getattr(self, name), lambda v: 1 <= v <= 86400, "a number of seconds from 1 to 86400")
        for name in ("epochs", "learning_rate", "delay_compensation"):
            _check(name, getattr(self, name), lambda v: math.isfinite(v) and v > 0, "a finite number above 0")
        _check("elastic", self.elastic, lambda v: 0 < v <= 1, "a number above 0 and at most 1")
        eval_distance(self.eval_every)
        checkpoint_distance(self.checkpoint_every)
        check_schedule(self.lr_schedule)
        if self.optimizer is not None:
            from mpitrain.parameters.optimizers import known_name

            known_name(self.optimizer)

    def replace(self, **changes: Any) -> RunConfig:
        """A copy with some values changed."""
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Plain values by option name."""
        return dataclasses.asdict(self)


def eval_distance(text: str) -> tuple[float | None, str]:
    """``--eval-every`` as (distance or None, ``"steps"`` or ``"epochs"``).

    Raises:
        InputError: where it is neither a whole number nor a number of epochs such as ``0.5ep``.
    """
    distance, unit = _distance(text)
    if unit not in ("steps", "epochs"):
        raise InputError(f"--eval-every is {text!r} but must be a number of updates (500) or of epochs (1ep, 0.5ep)")
    return distance, unit


def checkpoint_distance(text: str) -> tuple[float | None, str]:
    """``--checkpoint-every`` as (distance or None, ``"steps"``, ``"epochs"`` or ``"seconds"``).

    Raises:
        InputError: where it is none of these.
    """
    distance, unit = _distance(text)
    if not unit:
        raise InputError(
            f"--checkpoint-every is {text!r} but must be a number of updates (500), of epochs (1ep, 0.5ep) or of "
            "seconds (600s)"
        )
    return distance, unit


def _distance(text: str) -> tuple[float | None, str]:
    """A distance and its unit; no unit where ``text``, which a script may give as a number, is none."""
    text = str(text)
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ep|s)", text)
    if match:
        distance, unit = float(match[1]), {"ep": "epochs", "s": "seconds"}[match[2]]
    elif re.fullmatch(r"[0-9]{1,9}", text):
        distance, unit = int(text), "steps"
    else:
        return None, ""
    return (distance if distance > 0 else None), unit


def check_schedule(text: str) -> tuple[str, int, float]:
    """``--lr-schedule`` as (kind, every, factor).

    Raises:
        InputError: where it is none of ``constant``, ``cosine``, ``step:EVERY:FACTOR``.
    """
    if text in ("constant", "cosine"):
        return text, 1, 1.0
    match = re.fullmatch(r"step:([0-9]{1,9}):([0-9]{1,9}(?:\.[0-9]+)?)", text)
    if match and int(match[1]) > 0 and float(match[2]) > 0:
        return "step", int(match[1]), float(match[2])
    raise InputError(f"--lr-schedule is {text!r} but must be constant, cosine or step:EVERY:FACTOR, as in step:500:0.5")


def _check(name: str, value: Any, holds: Any, wanted: str) -> None:
    if value is not None and (isinstance(value, bool) or not holds(value)):
        raise InputError(f"{_flag(name)} is {value} but must be {wanted}")


def _choices(annotation: str) -> list[str]:
    if annotation == "Mode":
        return list(MODES)
    if annotation == "WireDtype":
        return list(get_args(WireDtype))
    # Python keeps annotations as text that it writes anew, with quotes of its own choice.
    return re.findall(r"""['"]([^'"]+)['"]""", annotation) if annotation.startswith("Literal[") else []


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
