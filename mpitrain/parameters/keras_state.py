"""What a model carries from step to step beside its trainable variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mpitrain.errors import InputError


class ModelState:
    """The non-trainable variables that a training step changes, as tensors outside the model.

    The float ones (batch normalization's averages) are one float64 vector, which ranks may average; integers and
    seeds are carried on, and are never shown. Variables that no step changes (frozen layers, a compiled model's
    metrics) stay constants of the graph.

    Args:
        model: built.
        dropout_seed: replaces the state of every seed generator; None keeps them.
    """

    def __init__(self, model: keras.Model, dropout_seed: int | None) -> None:
        self._variables = list(model.non_trainable_variables)
        frozen = {id(w) for layer in model._flatten_layers() if not layer.trainable for w in layer.weights}
        averages = {id(w) for w in model.non_trainable_weights} - frozen
        is_float = [keras.backend.is_float_dtype(v.dtype) for v in self._variables]
        self._floats = [i for i, v in enumerate(self._variables) if is_float[i] and id(v) in averages]
        self._others = [i for i, real in enumerate(is_float) if not real]
        self._constants = [tf.convert_to_tensor(v.value) for v in self._variables]
        self.tensors: list[Any] = []
        self._seeds: list[bool] = []
        if self._floats:
            self.tensors.append(tf.constant(self._read(model)))
        for order, place in enumerate(self._others):
            value = self._constants[place]
            self._seeds.append(self._variables[place].name == "seed_generator_state")
            if dropout_seed is not None and self._seeds[-1]:
                words = np.random.SeedSequence([dropout_seed, order]).generate_state(2)
                value = tf.constant(words.astype(value.dtype.as_numpy_dtype))
            self.tensors.append(value)

    @property
    def vector(self) -> np.ndarray:
        """The float state, shape ``(n,)``, read-only; empty where there is none."""
        return np.asarray(memoryview(self.tensors[0])) if self._floats else _EMPTY

    @vector.setter
    def vector(self, values: np.ndarray) -> None:
        if self._floats:
            self.tensors[0] = tf.constant(values, tf.float64, shape=self.tensors[0].shape)

    @property
    def carried(self) -> list[np.ndarray]:
        """Copies of the integers and seeds."""
        return [np.array(tensor) for tensor in self.tensors[bool(self._floats) :]]

    def carry_on(self, values: Sequence[np.ndarray], seeds: bool) -> None:
        """Go on from what ``carried`` gave, or ``seeds`` left out, from its integers alone.

        Raises:
            InputError: it is of another model.
        """
        first = bool(self._floats)
        if [v.shape for v in values] != [tuple(t.shape) for t in self.tensors[first:]]:
            raise InputError("the checkpoint's counters and random states are those of another model: name its own")
        for place, (value, is_seed) in enumerate(zip(values, self._seeds, strict=True), first):
            if seeds or not is_seed:
                self.tensors[place] = tf.constant(value, self.tensors[place].dtype)

    def unpack(self, tensors: list[Any]) -> list[Any]:
        """Within a graph: the values of all non-trainable variables, as ``stateless_call`` takes them."""
        values = list(self._constants)
        if self._floats:
            sizes = [math.prod(self._variables[i].shape) for i in self._floats]
            for place, part in zip(self._floats, tf.split(tensors[0], sizes), strict=True):
                variable = self._variables[place]
                values[place] = tf.cast(tf.reshape(part, variable.shape), variable.dtype)
        for place, tensor in zip(self._others, tensors[bool(self._floats) :], strict=True):
            values[place] = tensor
        return values

    def pack(self, values: list[Any]) -> list[Any]:
        """Within a graph: the reverse of ``unpack``."""
        tensors = []
        if self._floats:
            tensors.append(tf.concat([tf.cast(tf.reshape(values[i], [-1]), tf.float64) for i in self._floats], 0))
        return tensors + [values[i] for i in self._others]

    def write(self, model: keras.Model) -> None:
        """Put the float state into the variables of ``model``."""
        offset = 0
        for place in self._floats:
            variable = model.non_trainable_variables[place]
            size = math.prod(variable.shape)
            variable.assign(self.vector[offset : offset + size].reshape(variable.shape))
            offset += size

    def _read(self, model: keras.Model) -> np.ndarray:
        parts = [np.ravel(model.non_trainable_variables[i]) for i in self._floats]
        return np.concatenate(parts).astype(np.float64)


_EMPTY = np.empty(0)
