"""The gradient step: what turns parameters and a batch into a gradient, whoever computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpitrain.parameters.layout import Layout


class Batch(NamedTuple):
    """Inputs and targets with the samples along the first axis."""

    inputs: Any
    targets: Any

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.targets)


OnReady = Callable[[slice], None]


@dataclass
class StepResult:
    """What one batch gave.

    Args:
        gradient: shape ``(layout.size,)``, read-only, valid until the next ``run``; the gradient of Keras's loss, which
            is a mean over ``weight`` unless the step is ``undivided``.
        weight: what Keras divided the loss by (the number of rows for ``sum_over_batch_size``).
        sums: float64, ``[loss x weight, weight, samples, metric sums ...]``; they add up over ranks.
        state: float64, the model's float state after this batch (batch normalization's averages), or empty.
        finite: whether loss and gradient hold neither NaN nor infinity.
        rows: index of a variable in the layout → int64, ascending: the only rows of its gradient that are not zero, as
            an embedding's; of the others nothing is known.
    """

    gradient: np.ndarray
    weight: float
    sums: np.ndarray
    state: np.ndarray = field(default_factory=lambda: np.empty(0))
    finite: bool = True
    rows: Mapping[int, np.ndarray] = field(default_factory=dict)


class GradientStep(Protocol):
    """Computes gradients of one model at any parameter vector of its layout."""

    layout: Layout
    metric_names: tuple[str, ...]
    """Names of the metric sums, each a mean when divided by the number of samples."""
    undivided: bool
    """True when the loss is a sum over the batch: gradients then add, and are not averaged."""
    state: np.ndarray
    """float64: the model's float state now; assigning it replaces the state."""

    @property
    def carried(self) -> list[np.ndarray]:
        """What this worker alone carries from step to step: random states and counters, which are never averaged."""
        ...

    def carry_on(self, values: Sequence[np.ndarray], seeds: bool = True) -> None:
        """Go on from what ``carried`` gave; without ``seeds`` keep one's own random states."""
        ...

    def run(self, parameters: np.ndarray, batch: Batch, on_ready: OnReady | None = None) -> StepResult:
        """The gradient at ``parameters`` (shape ``(layout.size,)``) of the mean loss over ``batch``."""
        ...

    def evaluate(self, parameters: np.ndarray, batch: Batch) -> np.ndarray:
        """``StepResult.sums`` of the model in inference mode (no dropout, moving averages) over ``batch``."""
        ...
