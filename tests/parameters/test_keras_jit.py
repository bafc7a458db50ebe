"""Measuring whether XLA helps."""

import keras
import numpy as np
from keras import layers

from mpitrain.parameters.keras_jit import holds_convolution, measure_jit
from mpitrain.parameters.keras_step import KerasStep
from mpitrain.parameters.step import Batch


def test_both_paths_are_measured_prepared_and_equal():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), layers.BatchNormalization()])
    batch = Batch(np.ones((8, 6), np.float32), np.zeros(8, np.int32))
    found = measure_jit(lambda jit: KerasStep(model, "sparse_categorical_crossentropy", jit=jit), batch)
    assert found.plain is not None
    assert found.compiled is not None
    assert found.plain > 0 < found.compiled
    vector = found.steps[False].initial_parameters()
    plain, compiled = (found.steps[jit].run(vector, batch) for jit in (False, True))
    np.testing.assert_allclose(plain.gradient, compiled.gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(plain.state, compiled.state, rtol=1e-6)


def test_convolutions_are_not_tried_under_xla():
    inner = keras.Sequential([keras.Input((8, 8, 1)), layers.SeparableConv2D(2, 3), layers.Flatten()])
    model = keras.Sequential([keras.Input((8, 8, 1)), inner, layers.Dense(4)])
    assert holds_convolution(model)
    batch = Batch(np.ones((2, 8, 8, 1), np.float32), np.zeros(2, np.int32))
    found = measure_jit(lambda jit: KerasStep(model, "sparse_categorical_crossentropy", jit=jit), batch)
    assert (found.plain, found.compiled, set(found.steps)) == (None, None, {False})
    assert "convolutions" in found.reason
