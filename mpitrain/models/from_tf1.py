"""Start the mlp and the lstm as the two TF1 programs did that their users come from."""

from __future__ import annotations

import math

import keras
import numpy as np

from mpitrain.errors import InputError

TF1_REDUCTION = {"mlp": "sum", "lstm": "sum_over_batch_size"}
"""How those programs reduced the cross entropy of a batch to one number."""


def tf1_loss(name: str) -> keras.losses.Loss:
    """The loss of the TF1 program: the mlp's is a sum over the batch, the lstm's a mean.

    Raises:
        InputError: no TF1 program goes with ``name``.
    """
    _check(name)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=TF1_REDUCTION[name])


def reinitialise_from_tf1(model: keras.Model, name: str, seed: int) -> None:
    """Draw the initial weights as the TF1 program did.

    The mlp's weights are truncated normal (hidden 1/28, output 1/sqrt(100)) with biases 0; the lstm's projection and
    output are N(0, 1) with biases 0.1, its cell is TF1's BasicLSTMCell: one Glorot-uniform matrix from input and state
    to all four gates, forget bias 1.

    Args:
        model: as ``MODELS[name].build`` made it; its weights are replaced.
        name: ``mlp`` or ``lstm``.
        seed: the weights follow from it alone.

    Raises:
        InputError: no TF1 program goes with ``name``.
    """
    _check(name)
    random = np.random.default_rng(seed)
    for layer in model.layers:
        if isinstance(layer, keras.layers.LSTM):
            layer.set_weights(_lstm_cell(random, *(w.shape for w in layer.weights)))
        elif isinstance(layer, keras.layers.Dense):
            shape = layer.kernel.shape
            if name == "mlp":
                weights, bias = _truncated_normal(random, shape, 1 / math.sqrt(shape[0])), 0.0
            else:
                weights, bias = random.standard_normal(shape), 0.1
            layer.set_weights([weights, np.full(shape[1], bias)])


def _check(name: str) -> None:
    if name not in TF1_REDUCTION:
        raise InputError(f"--from-tf1 has no meaning for the model '{name}': only mlp and lstm come from TF1 programs.")


def _truncated_normal(random: np.random.Generator, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    """Normal values, drawn again beyond two deviations."""
    values = random.standard_normal(shape)
    while (outside := np.abs(values) > 2).any():
        values[outside] = random.standard_normal(int(outside.sum()))
    return values * deviation


def _lstm_cell(
    random: np.random.Generator, kernel: tuple[int, ...], recurrent: tuple[int, ...], bias: tuple[int, ...]
) -> list[np.ndarray]:
    """Weights in Keras's order of gates (input, forget, cell, output); the forget bias, added in TF1, is stored."""
    units = recurrent[0]
    limit = math.sqrt(6 / (kernel[0] + units + 4 * units))
    whole = random.uniform(-limit, limit, (kernel[0] + units, 4 * units))
    biases = np.zeros(bias)
    biases[units : 2 * units] = 1.0
    return [whole[: kernel[0]], whole[kernel[0] :], biases]
