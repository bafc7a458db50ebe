"""Three classifiers of 28 x 28 grey images into ten classes; all give logits."""

from __future__ import annotations

import keras
from keras import layers

IMAGE = (28, 28, 1)
CLASSES = 10


def build(name: str, seed: int) -> keras.Model:
    """The model called ``name``, with weights that follow from ``seed`` alone."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input(IMAGE), *_LAYERS[name](), layers.Dense(CLASSES, name="logits")], name=name)


def mlp() -> list[keras.Layer]:
    """784-100-10."""
    return [layers.Flatten(), layers.Dense(100, activation="relu", name="hidden")]


def lstm() -> list[keras.Layer]:
    """An image as 28 rows of 28: each projected to 128, through an LSTM of 128, whose last state is read."""
    return [layers.Reshape(IMAGE[:2]), layers.Dense(128, name="projection"), layers.LSTM(128, name="lstm")]


def cnn() -> list[keras.Layer]:
    """Two 5 x 5 convolutions with pooling, and a wide layer: 3,274,634 parameters, nearly all in the latter."""
    return [
        layers.Conv2D(32, 5, padding="same", activation="relu", name="conv1"),
        layers.MaxPooling2D(2),
        layers.Conv2D(64, 5, padding="same", activation="relu", name="conv2"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(1024, activation="relu", name="hidden"),
    ]


_LAYERS = {"mlp": mlp, "lstm": lstm, "cnn": cnn}
