"""The work that every peer does: the same images, batches and models; and how its steps are timed.

A peer imports TensorFlow before this module: importing mpitrain would otherwise set the number of threads for it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpitrain.data.mnist import load
from mpitrain.models import MODELS

SKIPPED = 10
"""Steps before the clock starts: tracing, and the first touch of all memory."""


@dataclass(frozen=True)
class Work:
    """What one worker does.

    Args:
        model: a key of ``MODELS``.
        steps: to be timed.
        images: float32, shape (samples, 28, 28, 1), from 0 to 1.
        labels: int64, shape (samples,).
    """

    model: str
    steps: int
    images: np.ndarray
    labels: np.ndarray

    @property
    def batch_size(self) -> int:
        """Samples of one step."""
        return MODELS[self.model].batch_size

    @property
    def learning_rate(self) -> float:
        """Of Adam."""
        return MODELS[self.model].learning_rate

    def build(self) -> Any:
        """The Keras model, with the same weights on every worker."""
        return MODELS[self.model].build(0)

    def rate(self, step: Callable[[np.ndarray, np.ndarray], Any], worker: int) -> float:
        """Samples/s of ``step``, a function of a batch that returns when it is done."""
        random = np.random.default_rng(worker)
        started = 0.0
        for number in range(SKIPPED + self.steps):
            if number == SKIPPED:
                started = time.perf_counter()
            picked = random.integers(0, len(self.images), self.batch_size)
            step(self.images[picked], self.labels[picked])
        return self.steps * self.batch_size / (time.perf_counter() - started)


def read_work(*more: tuple[str, Callable[[str], Any]]) -> tuple[Work, argparse.Namespace]:
    """From the command line: --model, --steps, --dataset, and other flags of ``(name, type)``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--dataset", default="mnist")
    for name, kind in more:
        parser.add_argument(f"--{name}", type=kind, required=True)
    flags = parser.parse_args()
    data = load(flags.dataset).train
    images = data.images[..., None].astype(np.float32) / 255
    return Work(flags.model, flags.steps, images, data.labels.astype(np.int64)), flags


def tell(rate: float, **more: Any) -> None:
    """Print what was measured, samples/s of this worker, as the last line."""
    print(json.dumps({"samples_per_second_per_worker": rate} | more), flush=True)
