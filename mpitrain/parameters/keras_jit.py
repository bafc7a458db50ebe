"""Whether XLA makes a step faster: measured at start, for it helps a rolled LSTM and slows convolutions down."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import keras
import tensorflow as tf

from mpitrain.parameters.keras_step import KerasStep
from mpitrain.parameters.step import Batch

_REPEATS = 7
_BUDGET = 0.4
"""Seconds after which three repeats have to do."""


@dataclass(frozen=True)
class JitMeasurement:
    """What was found.

    Args:
        plain: seconds a step without XLA, the median; None where it was not measured, for there was no choice.
        compiled: seconds a step with XLA, or None where it was not tried.
        reason: why, for the log.
    """

    plain: float | None
    compiled: float | None
    reason: str


def measure_jit(step: KerasStep, batch: Batch, timed: bool = True) -> JitMeasurement:
    """Time the step of one model with and without XLA, in turn.

    XLA's convolutions take twice as long as TensorFlow's on a CPU, and compiling them takes seconds: a model that
    holds one is not tried.

    Args:
        step: becomes prepared for both, as far as XLA was tried; set its ``jit`` to what is chosen.
        batch: real samples, as many as a training step has.
        timed: whether to measure, once the step is prepared; one rank's figures are enough.
    """
    step.jit = not holds_convolution(step.model)
    if not step.jit:
        step.prepare(batch)
        return JitMeasurement(None, None, "XLA is slow at convolutions on a CPU")
    try:
        step.prepare(batch)
    except tf.errors.OpError as error:
        step.jit = False
        return JitMeasurement(None, None, f"XLA does not compile this model ({type(error).__name__})")
    if not timed:
        return JitMeasurement(None, None, "measured by another rank")
    times: dict[bool, list[float]] = {False: [], True: []}
    begin = time.perf_counter()
    for repeat in range(_REPEATS):
        if repeat >= 3 and time.perf_counter() - begin > _BUDGET:
            break
        for jit, taken in times.items():
            start = time.perf_counter()
            step.rehearse(batch, jit)
            taken.append(time.perf_counter() - start)
    medians = {jit: statistics.median(t) for jit, t in times.items()}
    reason = f"{medians[False] * 1e3:.2f} ms a step without XLA, {medians[True] * 1e3:.2f} ms with it"
    return JitMeasurement(medians[False], medians[True], reason)


def holds_convolution(model: keras.Model) -> bool:
    """Whether any layer of ``model``, however deep, is a convolution."""
    return any("Conv" in kind.__name__ for layer in model._flatten_layers() for kind in type(layer).__mro__)
