"""The gradient step of a Keras model: TensorFlow reads parameters where they lie, and gives the gradient flat."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mpitrain.errors import InputError
from mpitrain.parameters.keras_loss import resolve_loss, weight_of
from mpitrain.parameters.keras_memory import address, is_shareable, shared_tensor
from mpitrain.parameters.keras_rows import RowGradient, stays_rows
from mpitrain.parameters.keras_state import ModelState
from mpitrain.parameters.layout import ALIGNMENT, Entry, Layout
from mpitrain.parameters.step import Batch, OnReady, StepResult

_KEPT_TENSORS = 64
"""Parameter vectors whose tensors are remembered: more than any exchange rotates through."""


class KerasStep:
    """A ``GradientStep`` that computes with a Keras model.

    Args:
        model: built, with all its trainable variables of one dtype, float32 or float64.
        loss: a Keras loss, its name, or a function of (targets, outputs); a reduction to one number is needed.
        metrics: what is counted beside the loss: ``("accuracy",)`` for outputs (batch, classes), or nothing.
        jit: compile with XLA, for the batch sizes that ``prepare`` is told; batches of other sizes do without it, so
            that nothing is compiled in the middle of a run.
        dropout_seed: replaces the state of the model's seed generators; give each rank another. None keeps them.

    Raises:
        InputError: the model or the loss is of a kind that cannot be trained on one vector.
    """

    def __init__(
        self,
        model: keras.Model,
        loss: Any,
        metrics: Sequence[str] = ("accuracy",),
        *,
        jit: bool = False,
        dropout_seed: int | None = None,
    ) -> None:
        self.model = model
        self.jit = jit
        self.metric_names = _known_metrics(metrics)
        self.loss = resolve_loss(loss)
        self.undivided = self.loss.reduction == "sum"
        self.layout = layout_of(model)
        if self.undivided and model.losses:
            raise InputError(
                "A loss that is a sum over the batch cannot be combined with regularization losses, "
                "which every rank would add again: use reduction='sum_over_batch_size'."
            )
        self._row = ALIGNMENT // self.layout.dtype.itemsize
        self._state = ModelState(model, dropout_seed)
        self._parameter_tensors: dict[int, Any] = {}
        self._plain: Callable[[list[Any]], Any] | None = None
        self._compiled: Callable[[list[Any]], Any] | None = None
        self._compiled_sizes: set[int] = set()
        self._evaluation: Callable[[list[Any]], Any] | None = None
        self._own: np.ndarray | None = None
        self._sparse: list[int] = []
        """Variables whose gradients come as rows; known once the step is traced."""
        self._rows: RowGradient | None = None

    def initial_parameters(self) -> np.ndarray:
        """The model's own weights now, as an aligned vector of shape ``(layout.size,)``."""
        return self.layout.pack([np.asarray(v) for v in self.model.trainable_variables])

    def prepare(self, batch: Batch, sizes: Iterable[int] = ()) -> None:
        """Trace the step for batches like ``batch``, and with ``jit`` compile it; nothing else changes.

        Args:
            batch: at least one sample, of the shapes and dtypes that ``run`` will see.
            sizes: numbers of samples to compile for, by default those of ``batch``.
        """
        if self._plain is None:
            self._plain = _direct(self._function(self._gradient, batch, jit=False))
            self.rehearse(batch, jit=False)
        if not self.jit:
            return
        if self._compiled is None:
            # Traced anew: for XLA, TensorFlow writes the gradient of a loop in another way.
            self._compiled = _direct(self._function(self._gradient, batch, jit=True))
        for size in sorted({*sizes} or {batch.size}):
            self.rehearse(_resized(batch, size), jit=True)
            self._compiled_sizes.add(size)

    def rehearse(self, batch: Batch, jit: bool) -> None:
        """One step at the model's own weights whose results are thrown away: for compiling and for timing."""
        function = self._compiled if jit else self._plain
        assert function is not None, "prepare comes first"
        if self._own is None:
            self._own = self.initial_parameters()
        outputs = function([self._parameter_tensor(self._own), *self._state.tensors, *_flat_tensors(batch)])
        memoryview(outputs[1]).tolist()

    def run(self, parameters: np.ndarray, batch: Batch, on_ready: OnReady | None = None) -> StepResult:
        """See ``GradientStep.run``.

        Raises:
            InputError: ``parameters`` does not lie on an ``ALIGNMENT`` border in writable, contiguous memory.
        """
        if self._plain is None:
            self.prepare(batch)
        function = self._compiled if self.jit and batch.size in self._compiled_sizes else self._plain
        assert function is not None
        outputs = function([self._parameter_tensor(parameters), *self._state.tensors, *_flat_tensors(batch)])
        gradient = np.asarray(memoryview(outputs[0]))
        loss, *counts = memoryview(outputs[1]).tolist()
        split = len(outputs) - 2 * len(self._sparse)
        self._state.tensors = outputs[2:split]
        finite = math.isfinite(loss) and all_finite(gradient)
        rows: dict[int, np.ndarray] = {}
        if self._sparse:
            values = [np.asarray(memoryview(o)) for o in outputs[split:]]
            finite = finite and all(all_finite(np.ravel(v)) for v in values[1::2])
            gradient, rows = self._whole(gradient, values)
        if on_ready is not None:
            on_ready(slice(0, self.layout.size))
        weight = weight_of(self.undivided, batch.size)
        return StepResult(
            gradient=gradient,
            weight=weight,
            sums=np.array([loss * weight, weight, batch.size, *counts]),
            state=self._state.vector,
            finite=finite,
            rows=rows,
        )

    def evaluate(self, parameters: np.ndarray, batch: Batch) -> np.ndarray:
        """See ``GradientStep.evaluate``; the loss is divided by samples, also where it is a sum."""
        if self._evaluation is None:
            self._evaluation = _direct(self._function(self._inference, batch, jit=False))
        outputs = self._evaluation([self._parameter_tensor(parameters), *self._state.tensors, *_flat_tensors(batch)])
        loss, *counts = memoryview(outputs[0]).tolist()
        return np.array([loss * weight_of(self.undivided, batch.size), batch.size, batch.size, *counts])

    @property
    def state(self) -> np.ndarray:
        """float64: batch normalization's averages and the like, as they are now."""
        return self._state.vector

    @state.setter
    def state(self, values: np.ndarray) -> None:
        self._state.vector = values

    @property
    def carried(self) -> list[np.ndarray]:
        """See ``GradientStep.carried``."""
        return self._state.carried

    def carry_on(self, values: Sequence[np.ndarray], seeds: bool = True) -> None:
        """See ``GradientStep.carry_on``."""
        self._state.carry_on(values, seeds)

    def load(self, parameters: np.ndarray, model: keras.Model | None = None) -> None:
        """Write ``parameters`` and the float state into the variables of ``model`` (default: the step's own)."""
        model = self.model if model is None else model
        for variable, view in zip(model.trainable_variables, self.layout.views(parameters), strict=True):
            variable.assign(view)
        self._state.write(model)

    def _parameter_tensor(self, parameters: np.ndarray) -> Any:
        """The tensor that reads ``parameters`` in rows from border to border, which are split without a copy."""
        place = address(parameters)
        tensor = self._parameter_tensors.get(place)
        if tensor is None:
            if not is_shareable(parameters) or parameters.size != self.layout.size:
                raise InputError(
                    f"Parameters must be {self.layout.size} writable, contiguous elements "
                    f"on a {ALIGNMENT}-byte border, as aligned_zeros makes them."
                )
            if len(self._parameter_tensors) >= _KEPT_TENSORS:
                self._parameter_tensors.pop(next(iter(self._parameter_tensors)))
            tensor = self._parameter_tensors[place] = shared_tensor(parameters.reshape(-1, self._row))
        return tensor

    def _function(self, function: Callable[..., Any], batch: Batch, jit: bool) -> Any:
        """``function`` of parameters, model state and a batch of any size, as a graph."""
        rows = tf.TensorSpec((self.layout.size // self._row, self._row), self.layout.dtype)
        state = [tf.TensorSpec(t.shape, t.dtype) for t in self._state.tensors]
        specs = [
            keras.tree.map_structure(lambda a: tf.TensorSpec((None, *np.shape(a)[1:]), np.asarray(a).dtype), tree)
            for tree in batch
        ]
        return tf.function(function, input_signature=[rows, state, *specs], jit_compile=jit, autograph=False)

    def _gradient(self, rows: Any, state: list[Any], inputs: Any, targets: Any) -> list[Any]:
        variables = self._split(rows)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss, counts, state = self._forward(variables, state, inputs, targets, training=True)
        gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        pairs = list(zip(self.layout.entries, gradients, strict=True))
        self._sparse = [index for index, (entry, g) in enumerate(pairs) if stays_rows(g, entry.size)]
        rows = [part for index in self._sparse for part in (gradients[index].indices, gradients[index].values)]
        dense = [pair for index, pair in enumerate(pairs) if index not in self._sparse]
        return [self._join(dense), _stack(loss, counts), *state, *rows]

    def _inference(self, rows: Any, state: list[Any], inputs: Any, targets: Any) -> list[Any]:
        loss, counts, _ = self._forward(self._split(rows), state, inputs, targets, training=False)
        return [_stack(loss, counts)]

    def _forward(
        self, variables: list[Any], state: list[Any], inputs: Any, targets: Any, training: bool
    ) -> tuple[Any, list[Any], list[Any]]:
        # As in Keras's own loop, a model whose call does not take `training` is not told.
        told = {"training": training} if "training" in inspect.signature(self.model.call).parameters else {}
        outputs, others, extra = self.model.stateless_call(
            variables, self._state.unpack(state), inputs, return_losses=True, **told
        )
        loss = self.loss(targets, outputs)
        if loss.shape.rank != 0:
            raise InputError(
                f"The loss {self.loss.name} gives a tensor of shape {loss.shape}, not one number: "
                "give it reduction='sum_over_batch_size'."
            )
        if extra:
            loss = tf.add_n([loss, *[tf.cast(tf.reduce_sum(e), loss.dtype) for e in extra]])
        counts = []
        if self.metric_names:
            hits = tf.equal(tf.argmax(outputs, -1, tf.int32), tf.cast(targets, tf.int32))
            counts.append(tf.reduce_sum(tf.cast(hits, tf.float32)))
        return loss, counts, self._state.pack(others)

    def _split(self, rows: Any) -> list[Any]:
        """Each variable; splitting rows along the first axis shares memory, where splitting elements would copy."""
        counts = [-(-e.size // self._row) for e in self.layout.entries]
        variables = []
        for entry, part in zip(self.layout.entries, tf.split(rows, counts), strict=True):
            flat = tf.reshape(part, [-1])
            variables.append(tf.reshape(flat[: entry.size] if entry.size % self._row else flat, entry.shape))
        return variables

    def _whole(self, dense: np.ndarray, values: list[np.ndarray]) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """The whole gradient, and which of its rows are not zero."""
        if self._rows is None:
            self._rows = RowGradient(self.layout, self._sparse)
        touched = zip(values[::2], values[1::2], strict=True)
        self._rows.update(dense, dict(zip(self._sparse, touched, strict=True)))
        return self._rows.vector, dict(self._rows.rows)

    def _join(self, gradients: list[tuple[Entry, Any]]) -> Any:
        parts = []
        for entry, gradient in gradients:
            parts.append(tf.reshape(tf.convert_to_tensor(gradient), [-1]))
            if entry.size % self._row:
                parts.append(tf.zeros([self._row - entry.size % self._row], self.layout.dtype))
        return tf.concat(parts, 0) if parts else tf.zeros([0], self.layout.dtype)


def all_finite(vector: np.ndarray) -> bool:
    """Whether no element is NaN or infinite: the square sum tells in one fast pass, unless it overflows."""
    with np.errstate(all="ignore"):
        if math.isfinite(np.dot(vector, vector)):
            return True
    return bool(np.isfinite(vector).all())


def _stack(loss: Any, counts: list[Any]) -> Any:
    return tf.stack([tf.cast(number, tf.float64) for number in (loss, *counts)])


def _resized(batch: Batch, size: int) -> Batch:
    """``size`` samples, those of ``batch`` over and over."""
    rows = np.arange(size) % batch.size
    return Batch(*(keras.tree.map_structure(lambda a: np.asarray(a)[rows], tree) for tree in batch))


def _flat_tensors(batch: Batch) -> list[Any]:
    if isinstance(batch.inputs, np.ndarray):
        return [shared_tensor(batch.inputs), shared_tensor(batch.targets)]
    return [shared_tensor(np.asarray(a)) for tree in batch for a in keras.tree.flatten(tree)]


def _direct(function: Any) -> Callable[[list[Any]], Any]:
    """Call the graph with a flat list of tensors, past a matching of arguments that costs as much as a small model."""
    concrete = function.get_concrete_function()
    captured = concrete.captured_inputs
    if hasattr(concrete, "_call_flat"):
        return lambda tensors: concrete._call_flat(tensors, captured)
    return lambda tensors: concrete(*tensors)


def _known_metrics(metrics: Sequence[str]) -> tuple[str, ...]:
    if tuple(metrics) not in ((), ("accuracy",)):
        raise InputError(f"The metrics {list(metrics)} cannot be counted: use ['accuracy'] or none.")
    return tuple(metrics)


def layout_of(model: keras.Model) -> Layout:
    """The layout of the model's trainable variables; raises ``InputError`` where one vector cannot hold them."""
    variables = model.trainable_variables
    if not variables:
        raise InputError(f"The model '{model.name}' has no trainable variables: build it, and leave layers trainable.")
    dtypes = sorted({str(v.dtype) for v in variables})
    if len(dtypes) > 1 or dtypes[0] not in ("float32", "float64"):
        raise InputError(
            f"The model '{model.name}' has trainable variables of {' and '.join(dtypes)}: "
            "all must be float32, or all float64."
        )
    if any(layer.dtype_policy.compute_dtype == "float16" for layer in model._flatten_layers()):
        raise InputError(
            f"The model '{model.name}' computes in float16, which needs loss scaling: use mixed_bfloat16 or float32."
        )
    return Layout.of([(v.path, tuple(v.shape)) for v in variables], dtypes[0])
