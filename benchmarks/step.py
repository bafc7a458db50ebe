"""One process, one thread: our gradient step and update against Keras's ``train_on_batch`` and ``fit``, in turn.

python -m benchmarks.step
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
from mpitrain.training.setup import WORTH_IT

AT_ONCE = "steps_per_execution"
STEPS_A_TURN = {"mlp": 300, "lstm": 12, "cnn": 8}


def loss() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def ours(spec: ModelSpec, batches: list[Batch]) -> Callable[[], None]:
    """A turn of our steps, with the path that measuring at start chooses."""
    step = KerasStep(spec.build(0), loss())
    found = measure_jit(step, batches[0])
    jit = found.compiled is not None and found.plain is not None and found.compiled < WORTH_IT * found.plain
    print(f"ours: jit={jit} ({found.reason})")
    step.jit = jit
    parameters = step.initial_parameters()
    optimizer = make_optimizer(OptimizerSpec(spec.optimizer), step.layout)

    def turn() -> None:
        for batch in batches:
            result = step.run(parameters, batch)
            optimizer.apply(parameters, result.gradient, parameters, spec.learning_rate)

    return turn


def kerass(spec: ModelSpec, batches: list[Batch], jit: bool, fit: bool, at_once: int = 1) -> Callable[[], Any]:
    """A turn of Keras's own steps; ``at_once`` of them in one call of TensorFlow."""
    model = spec.build(0)
    optimizer = keras.optimizers.get({"class_name": spec.optimizer, "config": {"learning_rate": spec.learning_rate}})
    model.compile(optimizer=optimizer, loss=loss(), metrics=["accuracy"], jit_compile=jit, steps_per_execution=at_once)
    if fit:
        inputs, targets = (np.concatenate(part) for part in zip(*batches, strict=True))
        return lambda: model.fit(inputs, targets, batch_size=spec.batch_size, shuffle=False, verbose=0)

    def turn() -> None:
        for batch in batches:
            model.train_on_batch(*batch)

    return turn


def measure(model: str, repeats: int) -> dict[str, list[float]]:
    """Seconds a step of ours and of each of Keras's ways, one after another in another order in each repeat."""
    spec, steps = MODELS[model], STEPS_A_TURN[model]
    train = load("mnist").train
    places = np.arange(steps * spec.batch_size).reshape(steps, spec.batch_size)
    batches = [Batch(*gather(train, indices)) for indices in places]
    turns = {"ours": ours(spec, batches)}
    for jit in (False, True):
        for fit in (False, True):
            name = f"{'fit' if fit else 'train_on_batch'}(jit_compile={jit})"
            turns[name] = kerass(spec, batches, jit, fit)
        turns[f"fit(jit_compile={jit}, {AT_ONCE}={steps})"] = kerass(spec, batches, jit, True, steps)
    times: dict[str, list[float]] = {name: [] for name in turns}
    for turn in turns.values():
        turn()
    random = np.random.default_rng(0)
    for _ in range(repeats):
        # Each turn finds the caches and the heap as the one before left them, so nobody always follows the same one.
        for name in random.permutation(list(turns)).tolist():
            start = time.perf_counter()
            turns[name]()
            times[name].append((time.perf_counter() - start) / steps)
    return times


def against_keras(times: dict[str, list[float]], at_once: bool) -> tuple[str, list[float]]:
    """Keras's fastest way, and how many times as fast we are in each repeat.

    Args:
        times: from :func:`measure`.
        at_once: whether a whole turn may be one call of TensorFlow, in which no other process could have a say.
    """
    ways = [name for name in times if name != "ours" and (AT_ONCE in name) == at_once]
    medians = {name: statistics.median(times[name]) for name in ways}
    best = min(medians, key=medians.__getitem__)
    return best, [theirs / our for theirs, our in zip(times[best], times["ours"], strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="cnn,lstm,mlp")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    lines = [
        f"one process, one thread: ms a step, medians of {arguments.repeats} interleaved repeats",
        "",
        "| model | mpitrain | Keras, its fastest | which | ratio (min-max) | many steps in one call | ratio |",
        "|---|---:|---:|---|---:|---:|---:|",
    ]
    for model in arguments.models.split(","):
        times = measure(model, arguments.repeats)
        best, ratios = against_keras(times, at_once=False)
        many, against_many = against_keras(times, at_once=True)
        mine, theirs, at_once = (statistics.median(times[name]) * 1e3 for name in ("ours", best, many))
        ratio = f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f}-{max(ratios):.2f})"
        rest = f"{at_once:.2f} | {statistics.median(against_many):.2f}"
        lines.append(f"| {model} | {mine:.2f} | {theirs:.2f} | `{best}` | {ratio} | {rest} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
