"""What stands for the optimizer where workers apply their own and hand over differences of parameters."""

from __future__ import annotations

import numpy as np

from mpitrain.parameters.blocked import Blocks
from mpitrain.parameters.numpy_optimizers import SGD


class Adding(SGD):
    """Takes a mean of ways back from the parameters; the learning rate was the workers' business.

    Args:
        size: elements of the slice.
        dtype: of the parameters.
        factor: of the mean: one averages the workers; one over their number where each comes alone (Downpour's scale);
            their number where the sum is wanted (EASGD).
    """

    def __init__(self, size: int, dtype: np.dtype, factor: float) -> None:
        super().__init__(size, dtype)
        self._factor = factor

    def apply(
        self,
        parameters: np.ndarray,
        gradient: np.ndarray | Blocks,
        out: np.ndarray,
        learning_rate: float,
        scale: float = 1.0,
    ) -> None:
        """See ``SliceOptimizer.apply``."""
        super().apply(parameters, gradient, out, self._factor, scale)
