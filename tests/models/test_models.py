"""The models that come with mpitrain, and their TF1 beginnings."""

import math
import subprocess
import sys

import numpy as np
import pytest
from keras import activations, layers

from mpitrain.errors import InputError
from mpitrain.models import MODELS
from mpitrain.models.from_tf1 import reinitialise_from_tf1, tf1_loss
from mpitrain.parameters.optimizers import OptimizerSpec


@pytest.mark.parametrize(
    ("name", "parameters", "batch_size", "rate"),
    [("mlp", 79_510, 100, 0.01), ("lstm", 136_586, 128, 0.001), ("cnn", 3_274_634, 100, 0.001)],
)
def test_sizes_and_defaults(name, parameters, batch_size, rate):
    spec = MODELS[name]
    model = spec.build(0)
    assert model.count_params() == parameters
    assert model(np.zeros((3, 28, 28, 1), np.float32)).shape == (3, 10)
    assert model.layers[-1].activation is activations.linear
    assert (spec.batch_size, OptimizerSpec(spec.optimizer).name, spec.learning_rate) == (batch_size, "Adam", rate)


@pytest.mark.parametrize("name", MODELS)
def test_weights_follow_from_the_seed_alone(name):
    def weights(seed):
        np.random.random(seed + 5)
        return np.concatenate([np.ravel(w) for w in MODELS[name].build(seed).weights])

    np.testing.assert_array_equal(weights(1), weights(1))
    assert not np.array_equal(weights(1), weights(2))


def test_names_are_known_without_keras():
    code = "import sys; from mpitrain.models import MODELS; sys.exit(bool({'keras', 'tensorflow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_mlp_from_tf1():
    model = MODELS["mlp"].build(0)
    reinitialise_from_tf1(model, "mlp", 7)
    hidden, hidden_bias, output, output_bias = map(np.asarray, model.weights)
    for weights, deviation in ((hidden, 1 / 28), (output, 1 / math.sqrt(100))):
        assert np.abs(weights).max() <= 2 * deviation
        # A normal cut off at two deviations keeps 0.88 of its deviation.
        np.testing.assert_allclose(weights.std(), 0.8796 * deviation, rtol=0.08)
        np.testing.assert_allclose(weights.mean(), 0, atol=4 * deviation / math.sqrt(weights.size))
    assert not hidden_bias.any()
    assert not output_bias.any()
    assert tf1_loss("mlp").reduction == "sum"


def test_lstm_from_tf1():
    model = MODELS["lstm"].build(0)
    reinitialise_from_tf1(model, "lstm", 7)
    for layer in model.layers:
        if isinstance(layer, layers.LSTM):
            kernel, recurrent, bias = layer.get_weights()
            limit = math.sqrt(6 / (256 + 512))
            for matrix in (kernel, recurrent):
                assert 0.99 * limit < np.abs(matrix).max() <= limit
                np.testing.assert_allclose(matrix.std(), limit / math.sqrt(3), rtol=0.02)
            np.testing.assert_array_equal(bias, np.repeat([0, 1, 0, 0], 128))
        elif isinstance(layer, layers.Dense):
            weights, bias = layer.get_weights()
            np.testing.assert_allclose(weights.std(), 1, rtol=0.08)
            assert np.abs(weights).max() > 2
            np.testing.assert_array_equal(bias, np.float32(0.1))
    assert tf1_loss("lstm").reduction == "sum_over_batch_size"


def test_from_tf1_follows_its_seed():
    first, second = MODELS["lstm"].build(0), MODELS["lstm"].build(1)
    reinitialise_from_tf1(first, "lstm", 3)
    reinitialise_from_tf1(second, "lstm", 3)
    for one, other in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_cnn_has_no_tf1_ancestor():
    with pytest.raises(InputError, match="no meaning for the model 'cnn'"):
        reinitialise_from_tf1(MODELS["cnn"].build(0), "cnn", 0)
