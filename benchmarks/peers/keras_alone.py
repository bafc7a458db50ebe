"""One process with Keras's own ``Model.fit``, with XLA and without; the faster counts.

python -m benchmarks.peers.keras_alone --model cnn --steps 100
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from benchmarks.peers.work import SKIPPED, Work, read_work, tell


class Clock(keras.callbacks.Callback):
    """Times the steps after the first."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.started, self.seconds, self._last = 0.0, 0.0, last

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if batch == SKIPPED:
            self.started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if batch == self._last:
            self.seconds = time.perf_counter() - self.started


def rate(work: Work, jit: bool) -> float:
    """Samples/s of ``fit``."""
    model = work.build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(work.learning_rate), loss, metrics=["accuracy"], jit_compile=jit)
    steps = SKIPPED + work.steps
    picked = np.random.default_rng(0).integers(0, len(work.images), steps * work.batch_size)
    clock = Clock(steps - 1)
    options = {"batch_size": work.batch_size, "shuffle": False, "verbose": 0, "callbacks": [clock]}
    model.fit(work.images[picked], work.labels[picked], **options)
    return work.steps * work.batch_size / clock.seconds


def main() -> None:
    """Train and print the speed."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    work, _ = read_work()
    rates = {jit: rate(work, jit) for jit in (False, True)}
    best = max(rates, key=rates.__getitem__)
    tell(rates[best], jit_compile=best)


if __name__ == "__main__":
    main()
