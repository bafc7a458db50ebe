"""The user's own model: found by PACKAGE.MODULE:FUNCTION, called, and checked against the data."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from mpitrain.errors import InputError
from mpitrain.models import check_name
from mpitrain.parameters.keras_loss import implied_loss, resolve_loss
from mpitrain.parameters.keras_optimizers import spec_from_keras
from mpitrain.parameters.optimizers import OptimizerSpec
from mpitrain.parameters.step import Batch


@dataclass(frozen=True)
class UserModel:
    """A checked model, its loss, and the optimizer that it was compiled with (None where it was not compiled)."""

    model: keras.Model
    loss: keras.losses.Loss
    optimizer: OptimizerSpec | None


def load_user_model(path: str, seed: int, batch: Batch, classes: int) -> UserModel:
    """Call the function that ``path`` names, and check what it returns.

    Args:
        path: ``PACKAGE.MODULE:FUNCTION``; the current directory is searched first.
        seed: Keras's random seed before the call.
        batch: a few real samples.
        classes: one more than the largest label.

    Raises:
        InputError: one sentence for each thing that can be wrong.
    """
    function = find_function(path)
    keras.utils.set_random_seed(seed)
    try:
        model = function()
    except Exception as error:
        raise InputError(f"The model function '{path}' raised {_told(error)}: correct it.") from error
    return check_model(model, path, batch, classes)


def find_function(path: str) -> Callable[[], Any]:
    """The function that ``path`` (``PACKAGE.MODULE:FUNCTION``) names; raises ``InputError`` where there is none."""
    check_name(path)
    module_name, _, function_name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(
                f"There is no module '{error.name}' for the model '{path}': install it, or run elsewhere."
            ) from error
        raise InputError(f"Importing the module of the model '{path}' raised {_told(error)}: correct it.") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        what = "no function" if function is None else f"a {type(function).__name__}, not a function,"
        raise InputError(f"The module '{module_name}' ({module.__file__}) has {what} '{function_name}': name another.")
    return function


def check_model(model: Any, path: str, batch: Batch, classes: int) -> UserModel:
    """Whether ``model`` can be trained on samples like ``batch`` with labels below ``classes``; builds it if need be.

    Raises:
        InputError: what does not fit, ``path`` saying whose it is.
    """
    if not isinstance(model, keras.Model):
        kind = type(model)
        raise InputError(f"'{path}' returned a {kind.__module__}.{kind.__qualname__}: it must return a keras.Model.")
    inputs = keras.tree.map_structure(lambda a: keras.ops.convert_to_tensor(np.asarray(a)[:8]), batch.inputs)
    try:
        outputs = model(inputs, training=False)
    except Exception as error:
        shapes = keras.tree.map_structure(lambda a: tuple(np.shape(a)[1:]), batch.inputs)
        raise InputError(
            f"The model of '{path}' does not take samples of shape {shapes} ({_told(error)}): change its input."
        ) from error
    if not model.trainable_variables:
        raise InputError(f"The model of '{path}' has no trainable variables: leave some layer trainable.")
    shape = getattr(outputs, "shape", None)
    if shape is None or len(shape) != 2 or shape[1] < classes:
        told = f"outputs of shape (batch, {', '.join(map(str, shape[1:]))})" if shape is not None else "several outputs"
        raise InputError(
            f"The model of '{path}' gives {told}, but the labels go up to {classes - 1}: "
            f"it must give (batch, classes) with at least {classes} classes."
        )
    if not model.compiled:
        return UserModel(model, implied_loss(model, outputs), None)
    if getattr(model, "_loss_weights", None) is not None or model.get_compile_config().get("loss_weights") is not None:
        raise InputError(f"The model of '{path}' was compiled with loss_weights, which a single loss does not need.")
    return UserModel(model, resolve_loss(model.loss), spec_from_keras(model.optimizer))


def _told(error: Exception) -> str:
    """An exception in half a sentence: its type, its first line, and the file and line where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f"{os.sep}site-packages{os.sep}" not in f.filename and f.filename != __file__]
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
    else:
        frame = (own or frames)[-1]
        place = f"{frame.filename}:{frame.lineno}"
    lines = str(error).strip().splitlines()
    text = f" '{lines[0].rstrip('.')}'" if lines else ""
    return f"{type(error).__name__}{text} at {place}"
