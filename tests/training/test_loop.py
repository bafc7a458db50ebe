"""The training loop with an exchange that agrees with nobody."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpitrain.exchange.base import Totals
from mpitrain.exchange.tickets import Ticket
from mpitrain.parameters.step import Batch, StepResult
from mpitrain.training.loop import train
from tests.support.numpy_step import Samples, SoftmaxStep


class Spoilt(SoftmaxStep):
    """Its state is spoilt where its gradient is."""

    def run(self, parameters: np.ndarray, batch: Batch, on_ready: Any = None) -> StepResult:
        result = super().run(parameters, batch, on_ready)
        if not result.finite:
            self.state = np.full_like(self.state, np.nan)
        return result


class Alone:
    """Hands out three tickets; the state stays this worker's own."""

    state = None

    def __init__(self, step: SoftmaxStep) -> None:
        self.parameters, self.totals = step.initial(), Totals.empty(4)
        self.step, self.states = step, [step.state]

    def start(self) -> Ticket:
        return Ticket(0, 0, 0, 10)

    def ready(self, part: slice) -> None:
        pass

    def finish(self, result: StepResult) -> Ticket | None:
        self.states.append(self.step.state)
        number = len(self.states) - 1
        return Ticket(number, 0, 10 * number, 10) if number < 3 else None


def test_a_bad_gradient_leaves_the_state_as_it_was() -> None:
    step = Spoilt()
    step.poison = {1}
    alone = Alone(step)
    train(alone, step, Samples(30).batch, lambda totals: None)  # type: ignore[arg-type]
    first, good, bad, last = alone.states
    assert np.array_equal(bad, good)
    assert not np.array_equal(good, first)
    assert np.isfinite(last).all()
    assert not np.array_equal(last, good)
