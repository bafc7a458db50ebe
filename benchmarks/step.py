"""One process, one thread: our gradient step and update against Keras's ``train_on_batch`` and ``fit``, in turn.

python -m benchmarks.step --model cnn
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.update(
    OMP_NUM_THREADS="1",
    TF_NUM_INTRAOP_THREADS="1",
    TF_NUM_INTEROP_THREADS="1",
    CUDA_VISIBLE_DEVICES="-1",
    TF_CPP_MIN_LOG_LEVEL="2",
    KERAS_BACKEND="tensorflow",
)

import keras
import numpy as np

from mpitrain.data.batches import batch as gather
from mpitrain.data.mnist import load
from mpitrain.models import MODELS, ModelSpec
from mpitrain.parameters.keras_jit import measure_jit
from mpitrain.parameters.keras_step import KerasStep
from mpitrain.parameters.optimizers import OptimizerSpec, make_optimizer
from mpitrain.parameters.step import Batch

STEPS_A_TURN = {"mlp": 300, "lstm": 12, "cnn": 8}


def loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def ours(spec: ModelSpec, batches: list[Batch]) -> Callable[[], None]:
    """A turn of our steps, with the path that measuring at start chooses."""
    model = spec.build(0)
    found = measure_jit(lambda jit: KerasStep(model, loss(), jit=jit), batches[0])
    jit = found.compiled is not None and found.plain is not None and found.compiled < found.plain
    print(f"ours: jit={jit} ({found.reason})")
    step = found.steps[jit]
    parameters = step.initial_parameters()
    optimizer = make_optimizer(OptimizerSpec(spec.optimizer), step.layout)

    def turn() -> None:
        for batch in batches:
            result = step.run(parameters, batch)
            optimizer.apply(parameters, result.gradient, parameters, spec.learning_rate)

    return turn


def kerass(spec: ModelSpec, batches: list[Batch], jit: bool, fit: bool) -> Callable[[], Any]:
    """A turn of Keras's own steps."""
    model = spec.build(0)
    optimizer = keras.optimizers.get({"class_name": spec.optimizer, "config": {"learning_rate": spec.learning_rate}})
    model.compile(optimizer=optimizer, loss=loss(), metrics=["accuracy"], jit_compile=jit)
    if fit:
        inputs, targets = (np.concatenate(part) for part in zip(*batches, strict=True))
        return lambda: model.fit(inputs, targets, batch_size=spec.batch_size, shuffle=False, verbose=0)

    def turn() -> None:
        for batch in batches:
            model.train_on_batch(*batch)

    return turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="cnn")
    parser.add_argument("--turns", type=int, default=15)
    arguments = parser.parse_args()

    spec, steps = MODELS[arguments.model], STEPS_A_TURN[arguments.model]
    train = load("mnist").train
    places = np.arange(steps * spec.batch_size).reshape(steps, spec.batch_size)
    batches = [Batch(*gather(train, indices)) for indices in places]

    turns = {"ours": ours(spec, batches)}
    for jit in (False, True):
        for fit in (False, True):
            name = f"{'fit' if fit else 'train_on_batch'}(jit_compile={jit})"
            turns[name] = kerass(spec, batches, jit, fit)
    times: dict[str, list[float]] = {name: [] for name in turns}
    for turn in turns.values():
        turn()
    for _ in range(arguments.turns):
        for name, turn in turns.items():
            start = time.perf_counter()
            turn()
            times[name].append((time.perf_counter() - start) / steps)

    medians = {name: statistics.median(t) for name, t in times.items()}
    for name, seconds in medians.items():
        pairs = statistics.median(t / o for t, o in zip(times[name], times["ours"], strict=True))
        print(f"{arguments.model} {name:34} {seconds * 1e3:8.3f} ms a step, {pairs:.2f} times ours")
    best = min((n for n in medians if n != "ours"), key=medians.__getitem__)
    print(f"{arguments.model}: {medians[best] / medians['ours']:.2f} times as fast as Keras's {best}")


if __name__ == "__main__":
    main()
