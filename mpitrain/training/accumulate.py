"""Gradient accumulation: the gradients of several batches, computed one after the other, as one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpitrain.cluster.waiting import now
from mpitrain.exchange.tickets import Ticket
from mpitrain.parameters.layout import aligned_zeros
from mpitrain.parameters.step import Batch, GradientStep, StepResult


class Accumulation:
    """Cuts a ticket into batches, and gives what one batch with all its samples would have given.

    Up to rounding, that is, and to dropout and batch normalization, which see each batch alone. Memory beside the
    gradient: two vectors; time: three passes over them for each batch.

    Args:
        step: computes the gradient of a batch.
        batch: the samples of a part of a ticket, valid until the next call.
        parts: batches in a ticket.
    """

    def __init__(self, step: GradientStep, batch: Callable[[Ticket], Batch], parts: int) -> None:
        self._step, self._batch, self._parts = step, batch, parts
        self._sum, self._term = (aligned_zeros(step.layout.size, step.layout.dtype) for _ in range(2))

    def run(self, parameters: np.ndarray, ticket: Ticket) -> StepResult:
        """What ``GradientStep.run`` says of a batch, for a ticket of at least one sample."""
        total, kind = self._sum, self._sum.dtype.type
        total[:] = 0
        parts = [part for k in range(self._parts) if (part := ticket.part(k, self._parts)).size]
        results = []
        for part in parts:
            now.work("computing a gradient", now.step)
            result = self._step.run(parameters, self._batch(part))
            factor = 1.0 if self._step.undivided else result.weight
            np.add(total, np.multiply(result.gradient, kind(factor), self._term), total)
            results.append(result)
        weight = sum(r.weight for r in results)
        if not self._step.undivided:
            np.multiply(total, kind(1 / weight), total)
        return StepResult(
            gradient=total,
            weight=1.0 if self._step.undivided else weight,
            sums=np.sum([r.sums for r in results], axis=0),
            state=results[-1].state,
            finite=all(r.finite for r in results),
        )
