"""The numpy optimizers on their own: names, refusals, blocks, slices. Keras is not imported."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from mpitrain.errors import InputError
from mpitrain.parameters import blocked
from mpitrain.parameters.layout import Layout, aligned_zeros
from mpitrain.parameters.numpy_optimizers import NUMPY as CLASSES
from mpitrain.parameters.optimizers import OptimizerSpec, is_elementwise, make_optimizer, needs_keras

LAYOUT = Layout.of([("a", (700,)), ("b", (33,))])
COMMON = {"weight_decay": 0.02, "clipvalue": 0.7}
NUMPY = [
    *[OptimizerSpec(name) for name in CLASSES],
    OptimizerSpec("sgd", {"momentum": 0.9}),
    OptimizerSpec("sgd", {"momentum": 0.9, "nesterov": True} | COMMON),
    OptimizerSpec("adam", {"amsgrad": True} | COMMON),
    OptimizerSpec("rmsprop", {"momentum": 0.9, "centered": True}),
]


def gradients(count, size=LAYOUT.size, seed=0):
    return np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)


@pytest.mark.parametrize("spec", NUMPY, ids=str)
def test_slices_and_blocks_give_the_whole_bit_for_bit(spec, monkeypatch):
    whole, cut = gradients(2)
    cut[:] = whole
    one = make_optimizer(spec, LAYOUT)
    monkeypatch.setattr(blocked, "BLOCK", 48)
    borders = (0, 240, LAYOUT.size)
    parts = [make_optimizer(spec, LAYOUT, *pair) for pair in itertools.pairwise(borders)]
    for gradient in gradients(5, seed=1):
        monkeypatch.setattr(blocked, "BLOCK", LAYOUT.size)
        one.apply(whole, gradient, whole, 0.01)
        monkeypatch.setattr(blocked, "BLOCK", 48)
        for part, start, stop in zip(parts, borders[:-1], borders[1:], strict=True):
            part.apply(cut[start:stop], gradient[start:stop], cut[start:stop], 0.01)
    np.testing.assert_array_equal(whole, cut)


@pytest.mark.parametrize("spec", NUMPY, ids=str)
def test_gradient_is_only_read_and_out_may_be_elsewhere(spec):
    gradient, parameters = gradients(2)
    before = parameters.copy()
    gradient.setflags(write=False)
    parameters.setflags(write=False)
    out = aligned_zeros(LAYOUT.size)
    make_optimizer(spec, LAYOUT).apply(parameters, gradient, out, 0.01)
    np.testing.assert_array_equal(parameters, before)
    assert not np.array_equal(out, before)


@pytest.mark.parametrize("spec", NUMPY, ids=str)
def test_scale_multiplies_the_gradient_first(spec):
    gradient, parameters = gradients(2)
    scaled, divided = aligned_zeros(LAYOUT.size), aligned_zeros(LAYOUT.size)
    make_optimizer(spec, LAYOUT).apply(parameters, gradient, scaled, 0.01, scale=0.25)
    make_optimizer(spec, LAYOUT).apply(parameters, gradient * np.float32(0.25), divided, 0.01)
    np.testing.assert_allclose(scaled, divided, rtol=1e-6)


@pytest.mark.parametrize("spec", NUMPY, ids=str)
def test_a_gradient_that_is_made_block_by_block_gives_the_same_bits(spec, monkeypatch):
    monkeypatch.setattr(blocked, "GIVEN_BLOCK", 48)
    gradient, parameters = gradients(2)
    whole, given = aligned_zeros(LAYOUT.size), aligned_zeros(LAYOUT.size)
    make_optimizer(spec, LAYOUT).apply(parameters, gradient, whole, 0.01, scale=0.5)
    make_optimizer(spec, LAYOUT).apply(parameters, lambda a, b: gradient[a:b], given, 0.01, scale=0.5)
    np.testing.assert_array_equal(whole, given)


@pytest.mark.parametrize("spec", NUMPY, ids=str)
def test_slots_and_iterations_carry_a_run_over(spec):
    parameters = gradients(1)[0]
    first, steps = make_optimizer(spec, LAYOUT), gradients(6, seed=3)
    for gradient in steps[:3]:
        first.apply(parameters, gradient, parameters, 0.01)
    second = make_optimizer(spec, LAYOUT)
    second.iterations = first.iterations
    for name, values in first.slots.items():
        second.set_slot(name, values)
    other = parameters.copy()
    for gradient in steps[3:]:
        first.apply(parameters, gradient, parameters, 0.01)
        second.apply(other, gradient, other, 0.01)
    np.testing.assert_array_equal(parameters, other)


def test_unknown_name_names_the_nearest():
    with pytest.raises(InputError, match="no optimizer 'adamm': did you mean 'adam'"):
        OptimizerSpec("adamm")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"use_ema": True}, "use_ema=True cannot be trained here"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps=2 cannot"),
        ({"loss_scale_factor": 128.0}, "loss_scale_factor=128.0 cannot"),
        ({"learning_rate": {"class_name": "CosineDecay"}}, "Keras schedule object: give a number"),
    ],
)
def test_refused_arguments(config, sentence):
    with pytest.raises(InputError, match=sentence):
        OptimizerSpec("adam", config)


def test_elementwise():
    assert is_elementwise(OptimizerSpec("AdamW"))
    assert is_elementwise(OptimizerSpec("sgd", {"clipvalue": 1.0}))
    assert not is_elementwise(OptimizerSpec("adam", {"clipnorm": 1.0}))
    assert not is_elementwise(OptimizerSpec("lamb"))


def test_what_numpy_covers():
    assert not any(needs_keras(OptimizerSpec(name, {"learning_rate": 0.1} | COMMON)) for name in CLASSES)
    assert needs_keras(OptimizerSpec("ftrl"))
    assert needs_keras(OptimizerSpec("adam", {"clipnorm": 1.0}))
    assert needs_keras(OptimizerSpec("adam", {"of_another_version": 1.0}))


def test_naming_and_numpy_optimizers_need_no_keras():
    code = (
        "import sys; from mpitrain.parameters.optimizers import *; from mpitrain.parameters.layout import Layout;"
        f"[make_optimizer(OptimizerSpec(name), Layout.of([('a', (4,))])) for name in {list(CLASSES)}];"
        "sys.exit('keras' in sys.modules or 'tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
