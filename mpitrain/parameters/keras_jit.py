"""Whether XLA makes a step faster: measured at start, for it helps a rolled LSTM and slows convolutions down."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import keras

from mpitrain.parameters.keras_step import KerasStep
from mpitrain.parameters.step import Batch

_REPEATS = 7
_BUDGET = 0.4
"""Seconds after which three repeats have to do."""


@dataclass(frozen=True)
class JitMeasurement:
    """What was found, with the prepared steps, so that the chosen one is not compiled again.

    Args:
        plain: seconds a step without XLA, the median; None where it was not measured, for there was no choice.
        compiled: seconds a step with XLA, or None where it was not tried.
        reason: why, for the log.
        steps: the prepared step by ``jit``.
    """

    plain: float | None
    compiled: float | None
    reason: str
    steps: dict[bool, KerasStep]


def measure_jit(make: Callable[[bool], KerasStep], batch: Batch) -> JitMeasurement:
    """Time the step of one model with and without XLA, in turn.

    XLA's convolutions take twice as long as TensorFlow's on a CPU, and compiling them takes seconds: a model that
    holds one is not tried.

    Args:
        make: a new step for ``jit`` False or True.
        batch: real samples, as many as a training step has.
    """
    plain = make(False)
    if holds_convolution(plain.model):
        plain.prepare(batch)
        return JitMeasurement(None, None, "XLA is slow at convolutions on a CPU", {False: plain})
    steps = {False: plain, True: make(True)}
    for step in steps.values():
        step.prepare(batch, [batch.size])
    times: dict[bool, list[float]] = {False: [], True: []}
    begin = time.perf_counter()
    for repeat in range(_REPEATS):
        if repeat >= 3 and time.perf_counter() - begin > _BUDGET:
            break
        for jit, step in steps.items():
            start = time.perf_counter()
            step.rehearse(batch)
            times[jit].append(time.perf_counter() - start)
    medians = {jit: statistics.median(t) for jit, t in times.items()}
    reason = f"{medians[False] * 1e3:.2f} ms a step without XLA, {medians[True] * 1e3:.2f} ms with it"
    return JitMeasurement(medians[False], medians[True], reason, steps)


def holds_convolution(model: keras.Model) -> bool:
    """Whether any layer of ``model``, however deep, is a convolution."""
    return any("Conv" in kind.__name__ for layer in model._flatten_layers() for kind in type(layer).__mro__)
