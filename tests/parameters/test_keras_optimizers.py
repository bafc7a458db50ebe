"""Every optimizer that can be named against Keras's own on the same variables."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from mpitrain.errors import InputError
from mpitrain.parameters.keras_optimizers import KerasSliceOptimizer, lacking, spec_from_keras
from mpitrain.parameters.layout import Layout
from mpitrain.parameters.numpy_optimizers import NUMPY
from mpitrain.parameters.optimizers import (
    BY_VARIABLE,
    ELEMENTWISE,
    OPTIMIZERS,
    OptimizerSpec,
    make_optimizer,
    needs_keras,
)

SHAPES = [("dense/kernel", (12, 5)), ("dense/bias", (5,)), ("out/kernel", (5, 7)), ("out/bias", (7,))]
LAYOUT = Layout.of(SHAPES)
WORKING = [name for name in OPTIMIZERS if not lacking(name)]
VARIANTS = [
    *[OptimizerSpec(name) for name in WORKING],
    OptimizerSpec("sgd", {"momentum": 0.9}),
    OptimizerSpec("sgd", {"momentum": 0.9, "nesterov": True}),
    OptimizerSpec("adam", {"beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-5}),
    OptimizerSpec("adam", {"amsgrad": True}),
    OptimizerSpec("adam", {"clipvalue": 0.3}),
    OptimizerSpec("sgd", {"clipnorm": 0.5}),
    OptimizerSpec("adam", {"global_clipnorm": 0.5}),
    OptimizerSpec("adam", {"amsgrad": True, "beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-5, "weight_decay": 0.1}),
    OptimizerSpec("adamw", {"weight_decay": 0.1, "beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-5, "amsgrad": True}),
    OptimizerSpec("nadam", {"beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-5, "weight_decay": 0.1}),
    OptimizerSpec("adamax", {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-5, "clipvalue": 0.3}),
    OptimizerSpec("lion", {"beta_1": 0.8, "beta_2": 0.9, "weight_decay": 0.1, "clipvalue": 0.3}),
    OptimizerSpec("rmsprop", {"momentum": 0.9, "centered": True}),
    OptimizerSpec("rmsprop", {"rho": 0.8, "momentum": 0.5, "epsilon": 1e-5, "weight_decay": 0.1}),
    OptimizerSpec("rmsprop", {"centered": True, "epsilon": 1e-3, "clipvalue": 0.3}),
    OptimizerSpec("adagrad", {"initial_accumulator_value": 0.5, "epsilon": 1e-3, "weight_decay": 0.1}),
    OptimizerSpec("adadelta", {"rho": 0.8, "epsilon": 1e-3, "weight_decay": 0.1}),
    OptimizerSpec("sgd", {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1, "clipvalue": 0.3}),
]


def start():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(np.float32) for _, shape in SHAPES]
    return arrays, LAYOUT.pack(arrays)


def gradients(count):
    rng = np.random.default_rng(1)
    return [[rng.normal(size=shape).astype(np.float32) for _, shape in SHAPES] for _ in range(count)]


def keras_run(spec, steps):
    arrays, _ = start()
    variables = [keras.Variable(a, name="v") for a in arrays]
    optimizer = getattr(keras.optimizers, spec.name)(**{**spec.config, "learning_rate": 0.01})
    optimizer.build(variables)
    apply = tf.function(optimizer.apply)
    for gradient in steps:
        apply([tf.constant(g) for g in gradient])
    return LAYOUT.pack([np.asarray(v) for v in variables])


@pytest.mark.parametrize("spec", VARIANTS, ids=lambda s: f"{s.name}-{'-'.join(s.config)}")
def test_equals_keras(spec):
    steps = gradients(20 if needs_keras(spec) else 100)
    _, vector = start()
    optimizer = make_optimizer(spec, LAYOUT)
    for gradient in steps:
        optimizer.apply(vector, LAYOUT.pack(gradient), vector, 0.01)
    expected = keras_run(spec, steps)
    assert optimizer.iterations == len(steps)
    np.testing.assert_allclose(vector, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", sorted(NUMPY))
def test_the_state_is_kerass_too(name):
    spec, steps = OptimizerSpec(name), [LAYOUT.pack(g) for g in gradients(5)]
    ours, kerass = make_optimizer(spec, LAYOUT), KerasSliceOptimizer(spec, LAYOUT, 0, LAYOUT.size)
    for optimizer in (ours, kerass):
        _, vector = start()
        for gradient in steps:
            optimizer.apply(vector, gradient, vector, 0.01)
    assert ours.slots.keys() == kerass.slots.keys()
    for slot, values in kerass.slots.items():
        np.testing.assert_allclose(ours.slots[slot], values, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_slices_give_the_whole_bit_for_bit(name):
    spec = OptimizerSpec(name, {"weight_decay": 0.01})
    cuts = (0, 80, LAYOUT.size)
    _, whole = start()
    cut = whole.copy()
    one = KerasSliceOptimizer(spec, LAYOUT, 0, LAYOUT.size)
    parts = [KerasSliceOptimizer(spec, LAYOUT, a, b) for a, b in itertools.pairwise(cuts)]
    for gradient in gradients(4):
        packed = LAYOUT.pack(gradient)
        one.apply(whole, packed, whole, 0.01, 0.5)
        for part, a, b in zip(parts, cuts[:-1], cuts[1:], strict=True):
            part.apply(cut[a:b], packed[a:b], cut[a:b], 0.01, 0.5)
    np.testing.assert_array_equal(whole, cut)


@pytest.mark.parametrize("name", [*sorted(BY_VARIABLE & {*WORKING}), "Nadam", "AdamW", "Ftrl"])
def test_slots_and_iterations_carry_a_run_over(name):
    spec, steps = OptimizerSpec(name), [LAYOUT.pack(g) for g in gradients(6)]
    _, vector = start()
    first, second = make_optimizer(spec, LAYOUT), make_optimizer(spec, LAYOUT)
    for gradient in steps[:3]:
        first.apply(vector, gradient, vector, 0.01)
    second.iterations = first.iterations
    for slot, values in first.slots.items():
        second.set_slot(slot, values)
    other = vector.copy()
    for gradient in steps[3:]:
        first.apply(vector, gradient, vector, 0.01)
        second.apply(other, gradient, other, 0.01)
    np.testing.assert_allclose(vector, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", sorted(BY_VARIABLE & {*WORKING}))
def test_slices_on_variable_borders(name):
    border = LAYOUT.entries[2].offset
    packed = LAYOUT.pack(gradients(1)[0])
    _, whole = start()
    cut = whole.copy()
    make_optimizer(OptimizerSpec(name), LAYOUT).apply(whole, packed, whole, 0.01)
    for a, b in ((0, border), (border, LAYOUT.size)):
        make_optimizer(OptimizerSpec(name), LAYOUT, a, b).apply(cut[a:b], packed[a:b], cut[a:b], 0.01)
    np.testing.assert_allclose(whole, cut, rtol=1e-6)


def test_names_are_kerass():
    known = {n for n in dir(keras.optimizers) if n[0].isupper()}
    assert set(OPTIMIZERS) <= known


@pytest.mark.parametrize(
    ("spec", "stop", "sentence"),
    [
        (OptimizerSpec("lamb"), 32, "Lamb needs whole variables, but the slice 0:32 cuts"),
        (OptimizerSpec("adam", {"clipnorm": 1.0}), 32, "Adam with clipnorm needs whole variables"),
        (OptimizerSpec("adam", {"global_clipnorm": 1.0}), 64, "needs the norm of the whole gradient"),
        (OptimizerSpec("adamw", {"no_such": 1.0}), 32, "Keras's AdamW does not take"),
    ],
    ids=str,
)
def test_refused(spec, stop, sentence):
    with pytest.raises(InputError, match=sentence):
        make_optimizer(spec, LAYOUT, 0, stop)


def test_what_an_old_keras_lacks_is_refused(monkeypatch):
    """Its own fit fails with a Muon before 3.13, and before 3.10 there was none."""
    assert tuple(map(int, keras.__version__.split(".")[:2])) < (3, 13) or list(OPTIMIZERS) == WORKING
    monkeypatch.setattr(keras, "__version__", "3.12.4")
    with pytest.raises(InputError, match=r"the Muon of Keras 3.12.4 does not work with TensorFlow: install a newer"):
        make_optimizer(OptimizerSpec("muon"), LAYOUT)
    monkeypatch.delattr(keras.optimizers, "Muon")
    with pytest.raises(InputError, match=r"Keras 3.12.4 has no Muon: install a newer one, or use another optimizer"):
        make_optimizer(OptimizerSpec("muon"), LAYOUT)


def test_spec_of_a_users_optimizer():
    spec = spec_from_keras(keras.optimizers.SGD(0.5, momentum=0.9))
    assert spec.name == "SGD"
    assert spec.config == {"learning_rate": 0.5, "momentum": 0.9}
    assert spec.learning_rate == 0.5


def test_spec_refuses_what_it_cannot_honour():
    class Mine(keras.optimizers.Adam):
        pass

    with pytest.raises(InputError, match=r"Mine is not supported: use one of"):
        spec_from_keras(Mine())
    with pytest.raises(InputError, match="Keras schedule object"):
        spec_from_keras(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 10)))
    excluding = keras.optimizers.AdamW()
    excluding.exclude_from_weight_decay(var_names=["bias"])
    with pytest.raises(InputError, match="excludes variables from weight decay"):
        spec_from_keras(excluding)
