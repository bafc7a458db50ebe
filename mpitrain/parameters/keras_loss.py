"""The loss of a gradient step: one Keras loss object, what its mean is divided by, and what a model implies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from mpitrain.errors import InputError

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def resolve_loss(loss: Any) -> keras.losses.Loss:
    """The Keras loss that ``loss`` means: an object, a name, or a function of (targets, outputs).

    Raises:
        InputError: there is no such loss, there are several, or it is not reduced to one number.
    """
    if isinstance(loss, (dict, list, tuple)):
        raise InputError("A model with several losses cannot be trained here: add them up in one loss function.")
    try:
        loss = keras.losses.get(loss)
    except ValueError as error:
        raise InputError(f"Keras knows no loss '{loss}': give the name of one, or a loss object.") from error
    if loss is None:
        raise InputError("No loss was given: compile the model with one.")
    if not isinstance(loss, keras.losses.Loss):
        loss = _FunctionLoss(loss)
    if loss.reduction not in (*_MEANS, "sum"):
        raise InputError(
            f"The loss {loss.name} has reduction={loss.reduction!r}, which leaves a number for each sample: "
            "use 'sum_over_batch_size'."
        )
    return loss


def weight_of(undivided: bool, samples: int) -> float:
    """What Keras divided a batch's loss by: its samples (there are no sample weights), or nothing for a sum."""
    return 1.0 if undivided else float(samples)


def implied_loss(model: keras.Model, outputs: Any) -> keras.losses.Loss:
    """Cross entropy for a model that was not compiled: of probabilities where it ends in a softmax, else of logits.

    Args:
        model: built.
        outputs: what it gave for a real batch, shape (batch, classes): decides for a subclassed model, whose last layer
            cannot be seen: rows that are never negative and sum to one are probabilities.
    """
    return keras.losses.SparseCategoricalCrossentropy(from_logits=not ends_in_softmax(model, outputs))


def ends_in_softmax(model: keras.Model, outputs: Any) -> bool:
    """Whether the outputs of ``model`` are probabilities (see ``implied_loss``)."""
    if isinstance(model, (keras.Sequential, keras.Function)):
        last = model.layers[-1] if isinstance(model, keras.Sequential) else _producer(model)
        if isinstance(last, (keras.Sequential, keras.Function)):
            return ends_in_softmax(last, outputs)
        return isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) is keras.activations.softmax
    values = keras.ops.convert_to_numpy(outputs)
    return bool((values >= 0).all() and abs(values.sum(-1) - 1).max() < 1e-3)


def _producer(model: keras.Function) -> Any:
    return keras.tree.flatten(model.outputs)[0]._keras_history.operation


class _FunctionLoss(keras.losses.Loss):
    """A plain function as Keras wraps it in ``compile``: the mean over the batch of what it gives."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(name=getattr(function, "__name__", "loss"))
        self.function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The function's value."""
        return self.function(y_true, y_pred)
