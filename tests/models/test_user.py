"""The user's own model: what is accepted, and the sentence for everything that is not."""

import sys

import numpy as np
import pytest

from mpitrain.errors import InputError
from mpitrain.models.user import load_user_model
from mpitrain.parameters.step import Batch

SOURCE = """
import keras
from keras import layers

CONSTANT = 3

def _net(units=5, activation=None, features=6):
    return keras.Sequential([keras.Input((features,)), layers.Dense(units, activation=activation)])

def logits():
    return _net()

def probabilities():
    return _net(activation="softmax")

def compiled():
    model = _net()
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), loss=keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="sum"))
    return model

def compiled_schedule():
    model = _net()
    model.compile(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 5)), loss="mse")
    return model

class Mine(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(5)

    def call(self, inputs):
        return self.dense(inputs)

def subclassed():
    return Mine()

def raises():
    raise KeyError("no such thing")

def returns_none():
    return None

def narrow():
    return _net(units=3)

def other_input():
    return _net(features=7)

def frozen():
    model = _net()
    model.trainable = False
    return model

def sequence():
    return keras.Sequential([keras.Input((6,)), layers.Dense(8), layers.Reshape((2, 4))])

def two_outputs():
    inputs = keras.Input((6,))
    return keras.Model(inputs, [layers.Dense(5)(inputs), layers.Dense(5)(inputs)])
"""
CLASSES = 5


@pytest.fixture
def load(tmp_path, monkeypatch):
    (tmp_path / "their_models.py").write_text(SOURCE)
    (tmp_path / "their_broken.py").write_text("def model(:\n")
    (tmp_path / "their_needs.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    batch = Batch(np.ones((20, 6), np.float32), np.arange(20) % CLASSES)
    yield lambda path: load_user_model(path, 1, batch, CLASSES)
    for name in ("their_models", "their_broken", "their_needs"):
        sys.modules.pop(name, None)


def test_uncompiled_models_get_cross_entropy(load):
    assert load("their_models:logits").loss.get_config()["from_logits"] is True
    found = load("their_models:probabilities")
    assert found.loss.get_config()["from_logits"] is False
    assert found.optimizer is None


def test_compiled_models_keep_loss_and_optimizer(load):
    found = load("their_models:compiled")
    assert found.loss.reduction == "sum"
    assert found.optimizer.name == "SGD"
    assert found.optimizer.config == {"learning_rate": 0.5, "momentum": 0.9}


def test_subclassed_models_are_built(load):
    assert [tuple(v.shape) for v in load("their_models:subclassed").model.trainable_variables] == [(6, 5), (5,)]


def test_weights_follow_from_the_seed(load):
    one, other = load("their_models:logits").model, load("their_models:logits").model
    np.testing.assert_array_equal(np.asarray(one.weights[0]), np.asarray(other.weights[0]))


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("resnet", "--model resnet is none of mlp, lstm, cnn, nor PACKAGE.MODULE:FUNCTION"),
        ("their_models:", "--model their_models: is none of"),
        (":logits", "--model :logits is none of"),
        ("their_nothing:model", "no module 'their_nothing'"),
        ("their_models.inner:model", "no module 'their_models.inner'"),
        ("their_needs:model", "raised ModuleNotFoundError 'No module named 'no_such_library'' at .*their_needs.py:1"),
        ("their_broken:model", "raised SyntaxError .* at .*their_broken.py:1"),
        ("their_models:nothing", "has no function 'nothing'"),
        ("their_models:CONSTANT", "has a int, not a function, 'CONSTANT'"),
        ("their_models:raises", "raised KeyError ''no such thing'' at .*their_models.py:39: correct it"),
        ("their_models:returns_none", "returned a builtins.NoneType: it must return a keras.Model"),
        ("their_models:narrow", r"outputs of shape \(batch, 3\), but the labels go up to 4"),
        ("their_models:sequence", r"outputs of shape \(batch, 2, 4\), but the labels"),
        ("their_models:two_outputs", "gives several outputs"),
        ("their_models:other_input", r"does not take samples of shape \(6,\) \(ValueError "),
        ("their_models:frozen", "no trainable variables"),
        ("their_models:compiled_schedule", "Keras schedule object"),
    ],
)
def test_refused_in_one_sentence(load, path, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        load(path)
    assert "\n" not in str(caught.value)
