"""The models that come with mpitrain, and the user's own; reading their names imports neither TensorFlow nor Keras."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpitrain.errors import InputError


@dataclass(frozen=True)
class ModelSpec:
    """One model and how it is trained unless the user says otherwise.

    Args:
        build: makes the model; its weights are a function of the seed alone.
        batch_size: samples for each worker.
        optimizer: a name of ``mpitrain.parameters.optimizers.OPTIMIZERS``.
        learning_rate: of that optimizer.
    """

    build: Callable[[int], Any]
    batch_size: int
    optimizer: str
    learning_rate: float


def _builder(name: str) -> Callable[[int], Any]:
    def build(seed: int) -> Any:
        from mpitrain.models import mnist

        return mnist.build(name, seed)

    return build


MODELS = {
    "mlp": ModelSpec(_builder("mlp"), 100, "adam", 0.01),
    "lstm": ModelSpec(_builder("lstm"), 128, "adam", 0.001),
    "cnn": ModelSpec(_builder("cnn"), 100, "adam", 0.001),
}
"""By the names that ``--model`` takes."""


def check_name(model: str) -> None:
    """Whether ``model`` is a name of ``MODELS`` or of the form PACKAGE.MODULE:FUNCTION, which need not exist.

    Raises:
        InputError: it is neither.
    """
    module, _, function = model.partition(":")
    if model not in MODELS and not (module and function):
        raise InputError(
            f"--model {model} is none of {', '.join(MODELS)}, nor PACKAGE.MODULE:FUNCTION with a function of yours"
        )
