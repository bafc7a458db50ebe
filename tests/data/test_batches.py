"""Batches: the right samples, scaled as pixels / 255, in memory that TensorFlow can alias."""

from __future__ import annotations

import numpy as np
import pytest

from mpitrain.data.batches import batch, batch_buffer
from mpitrain.data.mnist import Split
from mpitrain.parameters.layout import ALIGNMENT

SPLIT = Split(np.random.default_rng(2).integers(0, 256, (40, 9, 7), np.uint8), np.arange(100, 140, dtype=np.uint8))


@pytest.mark.parametrize("indices", [[3, 1, 1, 39], [0], [], list(range(40))])
def test_a_batch_is_the_samples_scaled(indices: list[int]) -> None:
    images, labels = batch(SPLIT, np.array(indices, np.intp))
    assert images.dtype == np.float32
    np.testing.assert_array_equal(images[..., 0], SPLIT.images[indices] / np.float32(255))
    assert labels.dtype == np.int32
    assert labels.tolist() == [100 + index for index in indices]


def test_pixels_lie_in_0_to_1() -> None:
    split = Split(np.arange(256, dtype=np.uint8).reshape(1, 16, 16), np.zeros(1, np.uint8))
    images, _ = batch(split, np.array([0]))
    assert (images.min(), images.max()) == (0, 1)


def test_a_buffer_is_aligned_and_used_again() -> None:
    buffer = batch_buffer(SPLIT, 5)
    assert buffer.ctypes.data % ALIGNMENT == 0
    assert buffer.shape == (5, 9, 7, 1)
    for indices in ([1, 2, 3, 4, 5], [30, 20]):
        images, _ = batch(SPLIT, np.array(indices), buffer)
        assert images.ctypes.data == buffer.ctypes.data
        np.testing.assert_array_equal(images[..., 0], SPLIT.images[indices] / np.float32(255))
    assert batch(SPLIT, np.array([1]))[0].ctypes.data % ALIGNMENT == 0


def test_a_part_of_other_images_is_read_right() -> None:
    split = Split(SPLIT.images[5:35:3, 1:, ::2], SPLIT.labels[5:35:3])
    images, labels = batch(split, np.array([9, 0]))
    np.testing.assert_array_equal(images[..., 0], SPLIT.images[[32, 5], 1:, ::2] / np.float32(255))
    assert labels.tolist() == [132, 105]


def test_a_sample_that_is_not_there_is_an_error() -> None:
    with pytest.raises(IndexError):
        batch(SPLIT, np.array([40]))
    with pytest.raises(ValueError, match="shape"):
        batch(SPLIT, np.array([1, 2, 3]), batch_buffer(SPLIT, 2))
