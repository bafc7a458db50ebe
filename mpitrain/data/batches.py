"""Samples gathered and scaled into a batch that a model reads."""

from __future__ import annotations

import math

import numpy as np

from mpitrain.data.mnist import Split
from mpitrain.parameters.layout import aligned_zeros


def batch_buffer(split: Split, size: int) -> np.ndarray:
    """A float32 array ``(size, height, width, 1)`` for ``batch``, aligned so that TensorFlow can alias it."""
    shape = (size, *split.images.shape[1:], 1)
    return aligned_zeros(math.prod(shape)).reshape(shape)


def batch(split: Split, indices: np.ndarray, out: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels at ``indices`` (integers, shape ``(n,)``) of ``split``.

    Args:
        split: where the samples are.
        indices: which, in the order of the batch.
        out: a ``batch_buffer`` of ``n`` images or more, whose first ``n`` are overwritten and returned; a new
            one without it.

    Returns:
        float32 images ``(n, height, width, 1)``, pixels / 255 in [0, 1], and int32 labels ``(n,)``.
    """
    images = (batch_buffer(split, len(indices)) if out is None else out)[: len(indices)]
    # Gather bytes, convert, divide in place: a division that converts is slower, and a product with 1 / 255
    # is not always pixels / 255.
    np.copyto(images, split.rows.take(indices).view(np.uint8).reshape(images.shape))
    images /= np.float32(255)
    return images, split.labels[indices].astype(np.int32)
