"""The weights of a checkpoint in a Keras model, or in a plain ``.keras`` file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.checkpoints.find import Found, find
from mpitrain.checkpoints.packing import Holding, Packing
from mpitrain.checkpoints.reader import Reader
from mpitrain.cluster import cores
from mpitrain.config import RunConfig
from mpitrain.data.mnist import load
from mpitrain.errors import InputError
from mpitrain.models import MODELS
from mpitrain.parameters.layout import Layout, aligned_zeros
from mpitrain.reporting.files import write_whole
from mpitrain.training.holdings import PARAMETERS
from mpitrain.training.keras_start import start_tensorflow
from mpitrain.training.resuming import STATE, check_layout


def load_checkpoint(path: str | Path, model: Any) -> int:
    """Put the weights of a checkpoint into a built Keras model, which need not be trained by mpitrain.

    Args:
        path: a checkpoint's folder, or a run directory for its newest whole one.
        model: a ``keras.Model`` of the same variables.

    Returns:
        The step.

    Raises:
        InputError: there is no whole checkpoint, or it is of another model.
    """
    from mpitrain.parameters.keras_state import ModelState
    from mpitrain.parameters.keras_step import layout_of

    found = find(str(path), None, _say_nothing)
    assert found is not None
    layout = layout_of(model)
    vector, float_state = _weights(found, layout)
    for variable, view in zip(model.trainable_variables, layout.views(vector), strict=True):
        variable.assign(view)
    if float_state is not None:
        state = ModelState(model, None)
        _check_state(found, state.vector.size)
        state.vector = float_state
        state.write(model)
    return found.manifest.step


def export(found: Found, output: Path) -> None:
    """Write the model of a checkpoint as a ``.keras`` file; it is made as it was for the run, from its options.

    Raises:
        InputError: the model cannot be made here, or the file cannot be written.
    """
    names = {field.name for field in dataclasses.fields(RunConfig)}
    config = RunConfig(**{name: value for name, value in found.manifest.config.items() if name in names})
    if config.model not in MODELS and ":" not in config.model:
        raise InputError(
            f"the model '{config.model}' of {found.path} was made by a script: call mpitrain.load_checkpoint(PATH, "
            "model) there, and save the model"
        )
    dataset = load(config.dataset, None if config.data_dir is None else Path(config.data_dir))
    threads = len(cores.visible_cores())
    cores.limit_threads(threads, config.allow_gpu)
    start_tensorflow(threads)
    from mpitrain.training.keras_setup import make_step, saved_model

    step = make_step(config, None, dataset, 0)[0]
    vector, float_state = _weights(found, step.layout)
    _check_state(found, step.state.size)
    write_whole(output, saved_model(step, vector, step.state if float_state is None else float_state))


def _weights(found: Found, layout: Layout) -> tuple[np.ndarray, np.ndarray | None]:
    """The parameters, padded, and the float state."""
    check_layout(found, layout)
    vector, packing = aligned_zeros(layout.size, layout.dtype), Packing(layout)
    reader = Reader(*found)
    reader.fill(Holding(PARAMETERS, layout.dtype, packing.size, lambda: vector, packing=packing), vector)
    return vector, reader.state().get(STATE)


def _check_state(found: Found, size: int) -> None:
    if found.manifest.state != size:
        raise InputError(f"the checkpoint {found.path} is of another model (other state beside the parameters)")


def _say_nothing(text: str) -> None:
    pass
