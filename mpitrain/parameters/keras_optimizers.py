"""Keras's own optimizers on a slice of the parameter vector."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mpitrain.errors import InputError
from mpitrain.parameters.blocked import Blocks
from mpitrain.parameters.keras_memory import shared_tensor
from mpitrain.parameters.layout import Entry, Layout
from mpitrain.parameters.optimizers import OPTIMIZERS, OptimizerSpec, is_elementwise

_MUON_WORKS = (3, 13)
"""Before it asks TensorFlow's variables for what only Keras's own have."""


def spec_from_keras(optimizer: keras.optimizers.Optimizer) -> OptimizerSpec:
    """A user's optimizer object as plain data.

    Raises:
        InputError: it is not exactly one of Keras's classes, or uses what cannot be honoured on slices.
    """
    kind = type(optimizer)
    if kind.__name__ not in OPTIMIZERS or kind is not getattr(keras.optimizers, kind.__name__, None):
        raise InputError(
            f"The optimizer {kind.__module__}.{kind.__name__} is not supported: use one of {', '.join(OPTIMIZERS)}."
        )
    if any(getattr(optimizer, f"_exclude_from_weight_decay{end}", None) for end in ("", "_pattern")):
        raise InputError(
            f"The optimizer {kind.__name__} excludes variables from weight decay, which cannot be honoured on slices: "
            "leave exclude_from_weight_decay out."
        )
    return OptimizerSpec(kind.__name__, optimizer.get_config())


def lacking(name: str) -> str:
    """Why the Keras that is installed cannot update with an optimizer; empty where it can."""
    if not hasattr(keras.optimizers, name):
        return f"Keras {keras.__version__} has no {name}"
    if name == "Muon" and tuple(map(int, keras.__version__.split(".")[:2])) < _MUON_WORKS:
        return f"the Muon of Keras {keras.__version__} does not work with TensorFlow"
    return ""


class KerasSliceOptimizer:
    """A ``SliceOptimizer`` that computes with the Keras class of ``spec``.

    An elementwise class sees the slice as one flat variable. Any other sees the variables of the layout, so the slice
    must hold whole ones. Parameters are copied into those variables: sharing their memory would let TensorFlow update
    a slice in place that others are still reading.

    Args:
        spec: the class and its arguments.
        layout: of the whole vector.
        start: first element of the slice.
        stop: one past its last element.

    Raises:
        InputError: the arguments are wrong for the class, the slice cuts what must be whole, or this Keras lacks it.
    """

    def __init__(self, spec: OptimizerSpec, layout: Layout, start: int, stop: int) -> None:
        self.spec = spec
        self.dtype = layout.dtype
        self.size = stop - start
        if is_elementwise(spec):
            self._entries: tuple[Entry, ...] = (Entry("parameters", (self.size,), 0, self.size),)
        else:
            self._entries = _whole_entries(spec, layout, start, stop)
        if reason := lacking(spec.name):
            raise InputError(f"{reason}: install a newer one, or use another optimizer")
        self._variables = [_variable(entry, self.dtype) for entry in self._entries]
        try:
            self._optimizer = getattr(keras.optimizers, spec.name)(**spec.config)
        except (TypeError, ValueError) as error:
            raise InputError(f"Keras's {spec.name} does not take {spec.config}: {error}") from error
        self._optimizer.build(self._variables)
        # First come the iteration and the learning rate; Nadam's last is a product that follows from the iteration.
        self._iteration, self._rate, *state = self._optimizer.variables
        self._slots = _by_slot(state[:-1] if spec.name == "Nadam" else state, self._entries)
        self._product = state[-1] if spec.name == "Nadam" else None
        vector, scalar = tf.TensorSpec((self.size,), self.dtype), tf.TensorSpec((), tf.float32)
        self._function = tf.function(
            self._update, input_signature=[vector, vector, scalar, scalar], jit_compile=is_elementwise(spec)
        )

    @property
    def iterations(self) -> int:
        """Updates applied so far."""
        return int(self._iteration)

    @iterations.setter
    def iterations(self, count: int) -> None:
        self._iteration.assign(count)
        if self._product is not None:
            factors = self._optimizer.beta_1 * (1 - 0.5 * 0.96 ** np.arange(1, count + 1, dtype=np.float64))
            self._product.assign(np.prod(factors))

    @property
    def slots(self) -> dict[str, np.ndarray]:
        """Copies of the state: shape ``(size,)`` of an elementwise class, else the variables' own one after another."""
        return {name: self.slot(name) for name in self._slots}

    @property
    def slot_types(self) -> dict[str, tuple[int, np.dtype]]:
        """See ``SliceOptimizer.slot_types``."""
        return {name: (sum(math.prod(v.shape) for v in own), self.dtype) for name, own in self._slots.items()}

    def slot(self, name: str) -> np.ndarray:
        """A copy of one state vector, in which integers (Adafactor's placeholders) are numbers like the others."""
        return np.concatenate([np.ravel(v) for v in self._slots[name]], dtype=self.dtype)

    def set_slot(self, name: str, values: np.ndarray) -> None:
        """Replace a state vector by ``values``, as ``slots`` gave it."""
        offset = 0
        for variable in self._slots[name]:
            size = math.prod(variable.shape)
            variable.assign(values[offset : offset + size].reshape(variable.shape))
            offset += size

    def apply(
        self,
        parameters: np.ndarray,
        gradient: np.ndarray | Blocks,
        out: np.ndarray,
        learning_rate: float,
        scale: float = 1.0,
    ) -> None:
        """See ``SliceOptimizer.apply``."""
        if not isinstance(gradient, np.ndarray):
            gradient = gradient(0, self.size)
        rate, factor = np.float32(learning_rate), np.float32(scale)
        out[...] = memoryview(self._function(tf.constant(parameters), shared_tensor(gradient), rate, factor))

    def _update(self, vector: Any, gradient: Any, rate: Any, scale: Any) -> Any:
        self._rate.assign(tf.cast(rate, self._rate.dtype))
        for variable, part in zip(self._variables, self._split(vector), strict=True):
            variable.assign(part)
        self._optimizer.apply(self._split(gradient * tf.cast(scale, gradient.dtype)))
        return self._join([v.value for v in self._variables])

    def _split(self, vector: Any) -> list[Any]:
        return [tf.reshape(vector[e.offset : e.offset + e.size], e.shape) for e in self._entries]

    def _join(self, parts: list[Any]) -> Any:
        ends = [e.offset for e in self._entries[1:]] + [self.size]
        flat = [
            tf.pad(tf.reshape(part, [-1]), [[0, end - e.offset - e.size]])
            for part, e, end in zip(parts, self._entries, ends, strict=True)
        ]
        return flat[0] if len(flat) == 1 else tf.concat(flat, 0)


def _whole_entries(spec: OptimizerSpec, layout: Layout, start: int, stop: int) -> tuple[Entry, ...]:
    """The entries within the slice, relative to its start."""
    if "global_clipnorm" in spec.config and (start, stop) != (0, layout.size):
        raise InputError(
            f"{spec.name} with global_clipnorm needs the norm of the whole gradient, which no rank holds here: "
            "use clipnorm or clipvalue, or one server."
        )
    borders = {e.offset for e in layout.entries} | {layout.size}
    if not {start, stop} <= borders:
        kind = f"{spec.name} with clipnorm" if "clipnorm" in spec.config else spec.name
        raise InputError(
            f"{kind} needs whole variables, but the slice {start}:{stop} cuts through one: "
            "cut at variable borders, or use an elementwise optimizer such as Adam."
        )
    return tuple(Entry(e.name, e.shape, e.offset - start, e.size) for e in layout.entries if start <= e.offset < stop)


def _variable(entry: Entry, dtype: np.dtype) -> keras.Variable:
    """A variable whose path is the entry's name, which some optimizers look at."""
    *scopes, name = entry.name.split("/")
    with ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(np.zeros(entry.shape, dtype), name=name)


def _by_slot(variables: list[keras.Variable], entries: tuple[Entry, ...]) -> dict[str, list[keras.Variable]]:
    """The optimizer's variables by the name of their slot; those that Keras gives no name of their own are factors."""
    paths = tuple(e.name.replace("/", "_") + "_" for e in entries)
    slots: dict[str, list[keras.Variable]] = {}
    for variable in variables:
        slot = next((variable.name[len(p) :] for p in paths if variable.name.startswith(p)), "factor")
        slots.setdefault(slot, []).append(variable)
    return slots
