"""Local steps: a worker trains alone for a while, and hands over how far it has come instead of a gradient."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpitrain.cluster.waiting import now
from mpitrain.exchange.tickets import Ticket
from mpitrain.parameters.layout import aligned_zeros
from mpitrain.parameters.optimizers import SliceOptimizer
from mpitrain.parameters.step import Batch, GradientStep, StepResult


class LocalSteps:
    """Cuts a ticket into batches, and applies the gradient of each to a vector of this worker's own.

    What is handed over, as if it were a gradient, is the way back: the parameters at the start minus those reached, so
    that whoever subtracts the mean over the workers averages them (local SGD: McMahan et al., AISTATS 2017; with
    asynchronous servers Downpour: Dean et al., NIPS 2012). With an elastic force the worker goes on from where it is,
    and gives and takes ``-elastic * (own - shared)`` (EASGD: Zhang, Choromanska and LeCun, NIPS 2015).

    Memory beside the gradient: two vectors, and the optimizer's.

    Args:
        step: computes the gradient of a batch.
        batch: the samples of a part of a ticket, valid until the next call.
        parts: batches in a ticket.
        optimizer: this worker's, of the whole vector; its state goes on from ticket to ticket.
        rate: the learning rate at a version of the shared parameters.
        elastic: the force; None to start each ticket from the shared parameters.
    """

    def __init__(
        self,
        step: GradientStep,
        batch: Callable[[Ticket], Batch],
        parts: int,
        optimizer: SliceOptimizer,
        rate: Callable[[int], float],
        elastic: float | None = None,
    ) -> None:
        self._step, self._batch, self._parts = step, batch, parts
        self.optimizer, self._rate, self._elastic = optimizer, rate, elastic
        self._own, self._way = (aligned_zeros(step.layout.size, step.layout.dtype) for _ in range(2))
        self.begun = False
        """Whether :attr:`own` holds where this worker has come to."""

    @property
    def own(self) -> np.ndarray | None:
        """This worker's own parameters, where they go on from ticket to ticket; to be read, and written into."""
        return None if self._elastic is None else self._own

    def run(self, parameters: np.ndarray, ticket: Ticket) -> StepResult:
        """Like ``GradientStep.run``, for a ticket of at least one sample; not finite where a gradient was not."""
        if self._elastic is None or not self.begun:
            self._own[:] = parameters
            self.begun = True
        rate = self._rate(now.step)
        results = []
        for part in (ticket.part(k, self._parts) for k in range(self._parts)):
            if not part.size:
                continue
            now.work("computing a gradient", now.step)
            result = self._step.run(self._own, self._batch(part))
            results.append(result)
            if not result.finite:
                break
            self.optimizer.apply(self._own, result.gradient, self._own, rate)
        np.subtract(parameters, self._own, self._way)
        if self._elastic is not None:
            self._way *= self._way.dtype.type(self._elastic)
            self._own += self._way
        return StepResult(
            gradient=self._way,
            weight=float(sum(r.sums[2] for r in results)),
            sums=np.sum([r.sums for r in results], axis=0),
            state=results[-1].state,
            finite=results[-1].finite and bool(np.isfinite(self._way).all()),
        )
