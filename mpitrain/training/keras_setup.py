"""What of a worker's start-up needs Keras: the model, its gradient step, and the plain model file at the end."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mpitrain.config import RunConfig
from mpitrain.data.batches import batch
from mpitrain.data.mnist import Dataset
from mpitrain.models import MODELS
from mpitrain.models.from_tf1 import reinitialise_from_tf1, tf1_loss
from mpitrain.models.user import UserModel, check_model, load_user_model
from mpitrain.parameters.keras_step import KerasStep
from mpitrain.parameters.optimizers import OptimizerSpec
from mpitrain.parameters.step import Batch

DEFAULT_BATCH_SIZE = 100
_PROBE = 8  # samples with which a model is tried out


def make_step(
    config: RunConfig, model: Any, dataset: Dataset, worker: int
) -> tuple[KerasStep, OptimizerSpec, float, int, dict[str, str]]:
    """The gradient step of this worker, not yet traced.

    Args:
        config: with the defaults of a named model filled in.
        model: a Keras model or a function that makes one; None for what ``config.model`` names.
        dataset: decides whether the model fits.
        worker: index among the workers, for the dropout seed.

    Returns:
        The step, the optimizer, its base learning rate, the batch size, and the versions of the libraries.

    Raises:
        InputError: the model, its loss or its optimizer cannot be trained.
    """
    probe = Batch(*batch(dataset.train, np.arange(min(_PROBE, len(dataset.train)))))
    made = _user_model(config, model, dataset, probe)
    if config.from_tf1:
        reinitialise_from_tf1(made.model, config.model, config.seed)
        made = UserModel(made.model, tf1_loss(config.model), made.optimizer)
    spec = OptimizerSpec(config.optimizer) if config.optimizer else made.optimizer or OptimizerSpec("adam")
    rate = config.learning_rate or spec.learning_rate or _keras_default_rate(spec)
    if not made.model.compiled:
        # keras.optimizers.get does not know all of Keras's own classes by name.
        optimizer = getattr(keras.optimizers, spec.name)(**spec.config | {"learning_rate": rate})
        made.model.compile(optimizer, made.loss, ["accuracy"])
    # Each worker drops other units; the order of the data and the initial weights are shared.
    seed = int(np.random.SeedSequence((config.seed, worker)).generate_state(1)[0])
    step = KerasStep(made.model, made.loss, dropout_seed=seed)
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__, "numpy": np.__version__}
    return step, spec, rate, config.batch_size or DEFAULT_BATCH_SIZE, versions


def saved_model(step: KerasStep, parameters: np.ndarray, state: np.ndarray) -> bytes:
    """A plain ``.keras`` file with these weights, which Keras opens without mpitrain."""
    step.state = state
    step.load(parameters)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        step.model.save(path)
        return path.read_bytes()


def _user_model(config: RunConfig, model: Any, dataset: Dataset, probe: Batch) -> UserModel:
    name = config.model
    if model is None and name not in MODELS:
        return load_user_model(name, config.seed, probe, dataset.num_classes)
    if model is None:
        made = MODELS[name].build(config.seed)
    elif isinstance(model, keras.Model):
        made = model
    else:
        keras.utils.set_random_seed(config.seed)
        made = model()
    return check_model(made, name, probe, dataset.num_classes)


def _keras_default_rate(spec: OptimizerSpec) -> float:
    return float(getattr(keras.optimizers, spec.name)().learning_rate.numpy())
