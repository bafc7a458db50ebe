"""A model of a hundred million parameters, to see what large models need.

    mpirun -np 4 python -m mpitrain --model benchmarks.large:model --mode ps-async --servers 2 --train-steps 8

The summary says how much memory servers and workers needed.
"""

from __future__ import annotations

from typing import Any


def model() -> Any:
    """784-9550-9550-200-10: 100,621,010 parameters, 402 MB of them."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28)),
            layers.Rescaling(1 / 255),
            layers.Flatten(),
            layers.Dense(9550, "relu"),
            layers.Dense(9550, "relu"),
            layers.Dense(200, "relu"),
            layers.Dense(10),
        ]
    )
