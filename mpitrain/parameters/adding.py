"""What stands for the optimizer where workers apply their own and hand over differences of parameters."""

from __future__ import annotations

import numpy as np

from mpitrain.parameters.blocked import GIVEN_BLOCK, Blocks
from mpitrain.parameters.layout import aligned_zeros


class Adding:
    """Takes a mean of ways back from the parameters.

    Args:
        size: elements of the slice.
        dtype: of the parameters.
        factor: of the mean: one averages the workers; one over their number where each comes alone (Downpour's scale);
            their number where the sum is wanted (EASGD).
    """

    def __init__(self, size: int, dtype: np.dtype, factor: float) -> None:
        self.iterations = 0
        self._factor = factor
        self._term = aligned_zeros(min(size, GIVEN_BLOCK), dtype)

    @property
    def slots(self) -> dict[str, np.ndarray]:
        """There is no state."""
        return {}

    @property
    def slot_types(self) -> dict[str, tuple[int, np.dtype]]:
        """There is no state."""
        return {}

    def slot(self, name: str) -> np.ndarray:
        """There is no state."""
        raise KeyError(name)

    def set_slot(self, name: str, values: np.ndarray) -> None:
        """There is no state."""
        raise KeyError(name)

    def apply(
        self,
        parameters: np.ndarray,
        gradient: np.ndarray | Blocks,
        out: np.ndarray,
        learning_rate: float,
        scale: float = 1.0,
    ) -> None:
        """See ``SliceOptimizer.apply``; the learning rate was the workers' business."""
        factor = parameters.dtype.type(self._factor * scale)
        for low in range(0, parameters.size, GIVEN_BLOCK):
            high = min(low + GIVEN_BLOCK, parameters.size)
            way = gradient[low:high] if isinstance(gradient, np.ndarray) else gradient(low, high)
            term = self._term[: high - low]
            np.multiply(way, factor, term)
            np.subtract(parameters[low:high], term, out[low:high])
        self.iterations += 1
