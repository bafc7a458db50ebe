"""The training loop, the same in every mode."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import numpy as np

from mpitrain.cluster.waiting import Stage, now
from mpitrain.exchange.base import Exchange, Totals
from mpitrain.exchange.tickets import Ticket
from mpitrain.parameters.step import Batch, GradientStep, StepResult

log = logging.getLogger("mpitrain")


class Several(Protocol):
    """Makes one result of a ticket of several batches."""

    def run(self, parameters: np.ndarray, ticket: Ticket) -> StepResult:
        """Like ``GradientStep.run``, for a ticket of at least one sample."""
        ...


def train(
    exchange: Exchange,
    step: GradientStep,
    batch: Callable[[Ticket], Batch],
    after_step: Callable[[Totals], None],
    several: Several | None = None,
) -> None:
    """Train until the exchange gives no more tickets.

    Args:
        exchange: how this worker agrees with the others.
        step: computes gradients.
        batch: the samples of a ticket.
        after_step: told the running totals after each exchange.
        several: works on a ticket of several batches; None where a ticket is one batch.
    """
    ticket = exchange.start()
    while ticket is not None:
        if exchange.state is not None:
            step.state = exchange.state
        before, version = step.state, exchange.totals.version
        now.work("computing a gradient", version)
        if not ticket.size:
            result = nothing(step)
        elif several:
            result = several.run(exchange.parameters, ticket)
        else:
            result = step.run(exchange.parameters, batch(ticket), exchange.ready)
        if not result.finite:
            log.warning("the gradient of step %d holds NaN or infinity, and is dropped", version)
            # What made the gradient useless may have spoilt batch normalization's averages too.
            step.state = before
        ticket = exchange.finish(result)
        now.stage = Stage.RUN
        after_step(exchange.totals)


def nothing(step: GradientStep) -> StepResult:
    """What a worker without samples contributes: no gradient, no weight."""
    return StepResult(np.empty(0, step.layout.dtype), 0.0, np.zeros(3 + len(step.metric_names)), step.state)
