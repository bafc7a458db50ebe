"""Model functions as users write them, good ones and bad ones: ``--model tests.support.user_models:NAME``."""

from __future__ import annotations

import keras
from keras import layers

IMAGE = (28, 28, 1)


def batch_norm() -> keras.Model:
    """With float state (moving averages) and a random layer."""
    return keras.Sequential(
        [
            keras.Input(IMAGE),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    """Builds its variables when it is first called."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.flatten, self.hidden, self.out = layers.Flatten(), layers.Dense(32, activation="relu"), layers.Dense(10)

    def call(self, inputs: object, training: bool = False) -> object:
        return self.out(self.hidden(self.flatten(inputs)))


def subclassed() -> keras.Model:
    return Subclassed()


@keras.saving.register_keras_serializable("tests")
class Unaware(Subclassed):
    """Its ``call`` knows nothing of training, which Keras allows."""

    def call(self, inputs: object) -> object:
        return super().call(inputs)


def unaware() -> keras.Model:
    return Unaware()


def raises() -> keras.Model:
    raise RuntimeError("the weights file\nis not there")


def returns_a_number() -> int:
    return 3


def five_classes() -> keras.Model:
    return keras.Sequential([keras.Input(IMAGE), layers.Flatten(), layers.Dense(5)])


def other_input() -> keras.Model:
    return keras.Sequential([keras.Input((27, 27, 1)), layers.Flatten(), layers.Dense(10)])


def differs_by_rank() -> keras.Model:
    from mpi4py import MPI

    width = 8 + MPI.COMM_WORLD.rank
    return keras.Sequential([keras.Input(IMAGE), layers.Flatten(), layers.Dense(width), layers.Dense(10)])
