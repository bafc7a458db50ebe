"""Measuring whether XLA helps."""

import keras
import numpy as np
from keras import layers

from mpitrain.parameters.keras_jit import holds_convolution, measure_jit
from mpitrain.parameters.keras_step import KerasStep
from mpitrain.parameters.step import Batch


def test_both_paths_are_measured_prepared_and_equal():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), layers.BatchNormalization()])
    random = np.random.default_rng(0)
    batch = Batch(random.normal(size=(8, 6)).astype(np.float32), np.arange(8, dtype=np.int32) % 4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = KerasStep(model, loss)
    found = measure_jit(step, batch)
    assert found.plain is not None
    assert found.compiled is not None
    assert found.plain > 0 < found.compiled
    vector = step.initial_parameters()
    results = []
    for jit in (False, True):
        step.jit = jit
        step.state = np.concatenate([np.zeros(4), np.ones(4)])
        result = step.run(vector, batch)
        results.append((result.gradient.copy(), result.state.copy()))
    plain, compiled = results
    np.testing.assert_allclose(plain[0], compiled[0], rtol=1e-4, atol=1e-6)
    # Averages near zero are differences of float32 sums of order 1e-2.
    np.testing.assert_allclose(plain[1], compiled[1], rtol=1e-6, atol=5e-9)


def test_convolutions_are_not_tried_under_xla():
    inner = keras.Sequential([keras.Input((8, 8, 1)), layers.SeparableConv2D(2, 3), layers.Flatten()])
    model = keras.Sequential([keras.Input((8, 8, 1)), inner, layers.Dense(4)])
    assert holds_convolution(model)
    batch = Batch(np.ones((2, 8, 8, 1), np.float32), np.zeros(2, np.int32))
    step = KerasStep(model, "sparse_categorical_crossentropy")
    found = measure_jit(step, batch)
    assert (found.plain, found.compiled, step.jit) == (None, None, False)
    assert "convolutions" in found.reason


def test_a_model_that_xla_refuses_does_without_it():
    import tensorflow as tf

    class InPython(layers.Layer):
        def call(self, inputs):
            shifted = tf.numpy_function(lambda a: a + np.float32(1), [inputs], tf.float32)
            return inputs + tf.stop_gradient(tf.ensure_shape(shifted, inputs.shape))

    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), InPython()])
    random = np.random.default_rng(0)
    batch = Batch(random.normal(size=(8, 6)).astype(np.float32), np.arange(8, dtype=np.int32) % 4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = KerasStep(model, loss)
    found = measure_jit(step, batch)
    assert (found.plain, found.compiled, step.jit) == (None, None, False)
    assert "XLA does not compile this model" in found.reason
    assert step.run(step.initial_parameters(), batch).finite
