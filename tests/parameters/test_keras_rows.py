"""Gradients of large embeddings: as rows, and whole, against TensorFlow's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from mpitrain.parameters.keras_step import KerasStep
from mpitrain.parameters.step import Batch

WORDS, WIDTH, CLASSES = 9000, 8, 3


def network():
    keras.utils.set_random_seed(1)
    words = keras.Input((5,), dtype="int32")
    small = layers.Embedding(11, 4, name="small")(words % 11)
    large = layers.Embedding(WORDS, WIDTH, name="large")
    # The table is used twice: what both uses add to a row must be added up.
    hidden = layers.Concatenate()([large(words), large(words // 2), small])
    return keras.Model(words, layers.Dense(CLASSES)(layers.Flatten()(hidden)))


def data(seed, count=6):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, WORDS, (count, 5)).astype(np.int32)
    words[0] = 7
    return Batch(words, rng.integers(0, CLASSES, count).astype(np.int32))


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize("jit", [False, True])
def test_the_gradient_is_whole_and_its_rows_are_known(jit):
    model = network()
    step = KerasStep(model, loss(), jit=jit)
    step.prepare(data(0))
    vector = step.initial_parameters()
    (table,) = [i for i, e in enumerate(step.layout.entries) if "large" in e.name]
    for seed, count in ((1, 6), (2, 6), (3, 2)):
        batch = data(seed, count)
        with tf.GradientTape() as tape:
            value = loss()(batch.targets, model(batch.inputs))
        wanted = tape.gradient(value, [v.value for v in model.trainable_variables])
        result = step.run(vector, batch)
        packed = step.layout.pack([np.asarray(tf.convert_to_tensor(g)) for g in wanted])
        np.testing.assert_allclose(result.gradient, packed, rtol=1e-5, atol=1e-7)
        assert not result.gradient.flags.writeable
        assert list(result.rows) == [table], "a small table is not worth it"
        np.testing.assert_array_equal(result.rows[table], np.unique([batch.inputs, batch.inputs // 2]))
        assert result.finite
    assert step.layout.entries[table].size == WORDS * WIDTH


def test_a_row_that_is_not_finite_is_noticed():
    step = KerasStep(network(), loss())
    vector = step.initial_parameters()
    views = step.layout.views(vector)
    views[-2][:] = np.inf
    assert not step.run(vector, data(1)).finite
