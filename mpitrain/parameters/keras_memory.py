"""Memory between numpy and TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from mpitrain.parameters.layout import ALIGNMENT


def is_shareable(array: np.ndarray) -> bool:
    """Whether TensorFlow can read ``array`` where it lies; it aborts the process on memory off its border."""
    flags = array.flags
    return bool(flags.writeable and flags.c_contiguous and array.size and address(array) % ALIGNMENT == 0)


def address(array: np.ndarray) -> int:
    """Where the first byte lies."""
    return int(array.__array_interface__["data"][0])


def shared_tensor(array: np.ndarray) -> Any:
    """``array`` as a tensor that reads the same memory where that is possible, else as a copy.

    A shared tensor keeps ``array`` alive, and shows whatever is written into it later.
    """
    if is_shareable(array):
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.constant(array)
