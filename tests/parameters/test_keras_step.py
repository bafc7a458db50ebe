"""The gradient step against Keras's own training, and what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from mpitrain.errors import InputError
from mpitrain.parameters.keras_loss import ends_in_softmax, implied_loss
from mpitrain.parameters.keras_step import KerasStep, all_finite
from mpitrain.parameters.layout import aligned_zeros
from mpitrain.parameters.optimizers import OptimizerSpec, make_optimizer
from mpitrain.parameters.step import Batch

CLASSES = 4


def cross_entropy(reduction="sum_over_batch_size"):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


def data(count=16, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return Batch(rng.normal(size=(count, 6)).astype(dtype), rng.integers(0, CLASSES, count).astype(np.int32))


def network(*middle, seed=3):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((6,)), layers.Dense(9, activation="tanh"), *middle, layers.Dense(CLASSES)])


def plain(seed=3):
    return network(seed=seed)


def train(step, batches, rate=0.1):
    vector = step.initial_parameters()
    optimizer = make_optimizer(OptimizerSpec("sgd"), step.layout)
    for batch in batches:
        optimizer.apply(vector, step.run(vector, batch).gradient, vector, rate)
    return vector


MIDDLES = {
    "plain": lambda: [],
    "batch normalization": lambda: [layers.BatchNormalization()],
    "dropout": lambda: [layers.Dropout(0.5, seed=11)],
    "regularization": lambda: [layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l1")],
    "frozen": lambda: [layers.Dense(5, trainable=False), layers.BatchNormalization(trainable=False)],
}


@pytest.mark.parametrize(
    ("middle", "jit"), [*[(name, False) for name in MIDDLES], ("batch normalization", True), ("dropout", True)]
)
def test_twenty_steps_equal_fit(middle, jit):
    batches = [data(seed=i) for i in range(20)]
    ours, keras_model = network(*MIDDLES[middle]()), network(*MIDDLES[middle]())
    step = KerasStep(ours, cross_entropy(), jit=jit)
    step.prepare(batches[0])
    step.load(train(step, batches))
    keras_model.compile(keras.optimizers.SGD(0.1), loss=cross_entropy(), jit_compile=jit)
    inputs, targets = (np.concatenate(part) for part in zip(*batches, strict=True))
    keras_model.fit(inputs, targets, batch_size=16, shuffle=False, verbose=0)
    for mine, its in zip(ours.weights, keras_model.weights, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(its), rtol=1e-5, atol=1e-6)


def test_sums_and_evaluation_equal_kerass():
    model, batch = plain(), data(33)
    step = KerasStep(model, cross_entropy())
    vector = step.initial_parameters()
    model.compile(loss=cross_entropy(), metrics=["accuracy"])
    loss, accuracy = model.evaluate(*batch, batch_size=33, verbose=0)
    for sums in (step.run(vector, batch).sums, step.evaluate(vector, batch)):
        np.testing.assert_allclose(sums, [loss * 33, 33, 33, accuracy * 33], rtol=1e-5)
    assert step.metric_names == ("accuracy",)


def test_odd_batches_do_not_trace_again():
    traces = []

    class Counting(keras.losses.SparseCategoricalCrossentropy):
        def call(self, y_true, y_pred):
            traces.append(y_pred.shape)
            return super().call(y_true, y_pred)

    step = KerasStep(plain(), Counting(from_logits=True))
    vector = step.initial_parameters()
    for size in (16, 7, 1, 15):
        assert step.run(vector, data(size)).weight == size
    assert len(traces) == 1


def test_prepared_sizes_leave_the_state_alone():
    step = KerasStep(network(layers.BatchNormalization(), layers.Dropout(0.5, seed=1)), cross_entropy(), jit=True)
    before = step.state.copy()
    step.prepare(data(16), [16, 5, 40])
    np.testing.assert_array_equal(step.state, before)


def test_float_state_is_shown_carried_and_replaced():
    step = KerasStep(network(layers.BatchNormalization(), layers.Dropout(0.5)), cross_entropy())
    vector, first = step.initial_parameters(), step.state.copy()
    assert first.shape == (18,)
    assert first.dtype == np.float64
    result = step.run(vector, data())
    assert not np.array_equal(result.state, first)
    np.testing.assert_array_equal(result.state, step.state)
    step.state = first
    np.testing.assert_array_equal(step.state, first)
    assert KerasStep(plain(), cross_entropy()).state.size == 0


def test_dropout_follows_its_seed():
    def gradient(dropout_seed):
        step = KerasStep(network(layers.Dropout(0.5, seed=1)), cross_entropy(), dropout_seed=dropout_seed)
        vector = step.initial_parameters()
        first = step.run(vector, data()).gradient.copy()
        assert not np.array_equal(first, step.run(vector, data()).gradient)
        return first

    np.testing.assert_array_equal(gradient(1), gradient(1))
    assert not np.array_equal(gradient(1), gradient(2))


def test_gradient_is_a_readonly_view_with_zero_padding():
    step = KerasStep(plain(), cross_entropy())
    gradient = step.run(step.initial_parameters(), data()).gradient
    assert not gradient.flags.writeable
    assert gradient.base is not None
    inside = np.zeros(step.layout.size, bool)
    for entry in step.layout.entries:
        inside[entry.offset : entry.offset + entry.size] = True
    assert not gradient[~inside].any()
    assert gradient[inside].any()


def test_parameters_are_read_where_they_lie():
    step, batch = KerasStep(plain(), cross_entropy()), data()
    vector = step.initial_parameters()
    before = step.run(vector, batch).gradient.copy()
    vector *= 2
    other = aligned_zeros(vector.size)
    other[:] = vector
    after = step.run(vector, batch).gradient.copy()
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(after, step.run(other, batch).gradient)


def test_disconnected_variables_have_zero_gradient():
    inputs = keras.Input((6,))
    used = layers.Dense(CLASSES)(inputs)
    unused = layers.Dense(3, name="unused")(inputs)
    model = keras.Model(inputs, used + 0 * keras.ops.stop_gradient(keras.ops.sum(unused)))
    step = KerasStep(model, cross_entropy())
    gradient = step.run(step.initial_parameters(), data()).gradient
    for entry, view in zip(step.layout.entries, step.layout.views(gradient), strict=True):
        assert view.any() != ("unused" in entry.name)


def test_embedding_gradient_is_dense():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((3,), dtype="int32"), layers.Embedding(20, 4), layers.Flatten(), layers.Dense(CLASSES)]
    )
    batch = Batch(np.array([[1, 2, 3], [3, 3, 5]], np.int32), np.array([0, 1], np.int32))
    step = KerasStep(model, cross_entropy())
    table = step.layout.views(step.run(step.initial_parameters(), batch).gradient)[0]
    np.testing.assert_array_equal(np.flatnonzero(table.any(axis=1)), [1, 2, 3, 5])


def test_sum_adds_undivided():
    batch, mean, total = data(10), KerasStep(plain(), cross_entropy()), KerasStep(plain(), cross_entropy("sum"))
    vector = mean.initial_parameters()
    divided, undivided = mean.run(vector, batch), total.run(vector, batch)
    assert (mean.undivided, total.undivided) == (False, True)
    assert (divided.weight, undivided.weight) == (10.0, 1.0)
    np.testing.assert_allclose(undivided.gradient, divided.gradient * 10, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(undivided.sums[0], divided.sums[0], rtol=1e-5)
    np.testing.assert_allclose(total.evaluate(vector, batch), mean.evaluate(vector, batch), rtol=1e-5)


def test_float64_and_bfloat16_policies():
    with _policy("float64"):
        double = network()
    step = KerasStep(double, cross_entropy())
    assert step.layout.dtype == np.float64
    assert step.run(step.initial_parameters(), data(dtype=np.float64)).finite
    with _policy("mixed_bfloat16"):
        mixed = network()
    step = KerasStep(mixed, cross_entropy())
    assert step.layout.dtype == np.float32
    assert step.run(step.initial_parameters(), data()).finite


class _policy:
    def __init__(self, name):
        self.name, self.before = name, keras.config.dtype_policy()

    def __enter__(self):
        keras.config.set_dtype_policy(self.name)

    def __exit__(self, *_):
        keras.config.set_dtype_policy(self.before)


def test_several_inputs():
    left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
    model = keras.Model({"left": left, "right": right}, layers.Dense(CLASSES)(layers.Concatenate()([left, right])))
    x, y = data()
    step = KerasStep(model, cross_entropy())
    assert step.run(step.initial_parameters(), Batch({"left": x, "right": x}, y)).gradient.any()


def test_not_finite_is_seen():
    step, batch = KerasStep(plain(), cross_entropy()), data()
    vector = step.initial_parameters()
    assert step.run(vector, batch).finite
    batch.inputs[3, 2] = np.nan
    assert not step.run(vector, batch).finite
    assert all_finite(np.full(5, 1e30, np.float32))
    assert not all_finite(np.array([1, np.inf], np.float32))
    assert not all_finite(np.array([1e30, np.nan], np.float32))


def test_misplaced_parameters_are_refused():
    step = KerasStep(plain(), cross_entropy())
    shifted = aligned_zeros(step.layout.size + 16)[1:][: step.layout.size]
    with pytest.raises(InputError, match="64-byte border"):
        step.run(shifted, data())
    with pytest.raises(InputError, match="64-byte border"):
        step.run(aligned_zeros(step.layout.size + 16), data())


def mixed_dtypes():
    return network(layers.Dense(5, dtype="float64"))


@pytest.mark.parametrize(
    ("model", "loss", "sentence"),
    [
        (plain, "none", "reduction='none', which leaves a number for each sample"),
        (plain, "no_such_loss", "knows no loss 'no_such_loss'"),
        (plain, ["mse", "mse"], "several losses"),
        (plain, None, "No loss was given"),
        (mixed_dtypes, "mean", "float32 and float64"),
        (lambda: network(layers.Dense(5, dtype="mixed_float16")), "mean", "needs loss scaling"),
        (lambda: network(layers.Dense(5, kernel_regularizer="l2")), "sum", "regularization losses"),
        (lambda: keras.Sequential([keras.Input((4,)), layers.Flatten()]), "mean", "no trainable variables"),
    ],
)
def test_refused(model, loss, sentence):
    if loss in ("none", "sum", "mean"):
        loss = cross_entropy(loss)
    with pytest.raises(InputError, match=sentence):
        KerasStep(model(), loss)


def test_a_loss_for_each_sample_is_refused():
    class Vector(keras.losses.Loss):
        def __call__(self, y_true, y_pred, sample_weight=None):
            return tf.reduce_sum(y_pred, -1)

    step = KerasStep(plain(), Vector())
    with pytest.raises(InputError, match="not one number"):
        step.prepare(data())


def test_a_plain_function_is_averaged():
    def squared(y_true, y_pred):
        return tf.reduce_mean(tf.square(y_pred), -1)

    model, batch = plain(), data()
    step = KerasStep(model, squared)
    expected = np.mean(np.square(model(batch.inputs)))
    np.testing.assert_allclose(step.run(step.initial_parameters(), batch).sums[0] / batch.size, expected, rtol=1e-5)


def test_softmax_is_seen():
    class Subclassed(keras.Model):
        def __init__(self, activation):
            super().__init__()
            self.out = layers.Dense(CLASSES, activation=activation)

        def call(self, x):
            return self.out(x)

    inner = keras.Sequential([keras.Input((6,)), layers.Dense(CLASSES, activation="softmax")])
    inputs = keras.Input((6,))
    cases = [
        (plain(), False),
        (network(layers.Dense(CLASSES, activation="softmax")), False),
        (inner, True),
        (keras.Sequential([keras.Input((6,)), layers.Dense(CLASSES), layers.Softmax()]), True),
        (keras.Sequential([keras.Input((6,)), inner]), True),
        (keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(inputs)), True),
        (keras.Model(inputs, layers.Dense(CLASSES)(inputs)), False),
        (Subclassed("softmax"), True),
        (Subclassed(None), False),
    ]
    for model, expected in cases:
        outputs = model(data().inputs)
        assert ends_in_softmax(model, outputs) == expected
        assert implied_loss(model, outputs).get_config()["from_logits"] != expected
