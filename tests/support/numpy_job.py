"""The command line with a gradient step in plain numpy: all else of such a run is the real thing."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpitrain.config import RunConfig
from mpitrain.data.mnist import Dataset
from mpitrain.parameters.optimizers import OptimizerSpec
from mpitrain.parameters.step import Batch, OnReady, StepResult
from mpitrain.training import setup
from mpitrain.training.setup import Description
from tests.support.numpy_step import CLASSES, FEATURES, SoftmaxStep


class PixelStep(SoftmaxStep):
    """Sees a few pixels of each image."""

    jit = False

    def run(self, parameters: np.ndarray, batch: Batch, on_ready: OnReady | None = None) -> StepResult:
        return super().run(parameters, _few(batch), on_ready)

    def evaluate(self, parameters: np.ndarray, batch: Batch) -> np.ndarray:
        return super().evaluate(parameters, _few(batch))

    def initial_parameters(self) -> np.ndarray:
        return self.initial()

    def prepare(self, batch: Batch) -> None:
        pass


def install(make_step: Callable[[], PixelStep]) -> None:
    """From now on each worker of a run calls ``make_step`` for a model; ``model.keras`` is the parameters' bytes."""

    def make(config: RunConfig, model: Any, data: Dataset, worker: int, threads: int) -> tuple[PixelStep, Description]:
        step = make_step()
        spec = OptimizerSpec(config.optimizer or "sgd")
        sizes = config.learning_rate or 0.01, config.batch_size or 10, data.name, len(data.train)
        return step, Description(
            step.layout, step.metric_names, step.state.size, step.undivided, spec, *sizes, {"numpy": np.__version__}
        )

    setup._make = make  # type: ignore[assignment]
    no_keras: Any = types.ModuleType("mpitrain.training.keras_setup")
    no_keras.saved_model = lambda step, parameters, state: parameters.tobytes()
    sys.modules[no_keras.__name__] = no_keras


def main(make_step: Callable[[], PixelStep], arguments: Sequence[str]) -> int:
    """``python -m mpitrain ARGUMENTS``, where each worker calls ``make_step`` for a model."""
    install(make_step)
    from mpitrain.__main__ import main as command

    own = 0 if not arguments or arguments[0].startswith("-") else 1
    options = ["--dataset", "mnist-sample", "--model", "mlp", "--jit", "off", "--threads", "1"]
    return command([*arguments[:own], *options, *arguments[own:]])


def _few(batch: Batch) -> Batch:
    pixels = np.asarray(batch.inputs).reshape(batch.size, -1)[:, 200 : 200 + FEATURES]
    return Batch(pixels.astype(np.float32) / 255, np.asarray(batch.targets) % CLASSES)
