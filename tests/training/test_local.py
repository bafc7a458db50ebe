"""What a worker that steps alone hands over."""

from __future__ import annotations

import numpy as np
import pytest

from mpitrain.exchange.tickets import Ticket
from mpitrain.parameters.adding import Adding
from mpitrain.parameters.optimizers import OptimizerSpec, make_optimizer
from mpitrain.training.local import LocalSteps
from tests.support.numpy_step import Samples, SoftmaxStep

RATE = 0.05


def local(step: SoftmaxStep, parts: int, elastic: float | None = None, optimizer: str = "sgd") -> LocalSteps:
    own = make_optimizer(OptimizerSpec(optimizer), step.layout)
    return LocalSteps(step, Samples(50).batch, parts, own, lambda version: RATE, elastic)


@pytest.mark.parametrize("undivided", [False, True])
def test_one_step_hands_over_the_gradient_times_the_rate(undivided: bool) -> None:
    step = SoftmaxStep(undivided=undivided)
    ticket, shared = Ticket(0, 0, 7, 12), step.initial()
    given = local(step, 1).run(shared, ticket)
    expected = SoftmaxStep(undivided=undivided).run(shared, Samples(50).batch(ticket))
    np.testing.assert_allclose(given.gradient, RATE * expected.gradient, rtol=1e-4, atol=1e-7)
    assert given.weight == 12
    np.testing.assert_array_equal(given.sums, expected.sums)


@pytest.mark.parametrize("elastic", [None, 0.3, 1.0])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_several_steps_are_a_run_of_their_own(optimizer: str, elastic: float | None) -> None:
    step, plain = SoftmaxStep(), SoftmaxStep()
    steps, apply = local(step, 3, elastic, optimizer), make_optimizer(OptimizerSpec(optimizer), plain.layout)
    own, shared = plain.initial(), plain.initial()
    for number, size in enumerate((9, 2, 9)):
        ticket = Ticket(number, 0, 9 * number, size)
        if elastic is None:
            own = shared.copy()
        for part in (ticket.part(k, 3) for k in range(3)):
            if part.size:
                apply.apply(own, plain.run(own, Samples(50).batch(part)).gradient, own, RATE)
        way = shared - own
        if elastic is not None:
            way = np.float32(elastic) * way
            own = own + way
        given = steps.run(shared, ticket)
        np.testing.assert_allclose(given.gradient, way, rtol=1e-5, atol=1e-7)
        assert given.finite
        shared = shared - given.gradient + np.float32(0.01)


def test_a_bad_gradient_spoils_the_ticket_and_not_the_worker() -> None:
    step = SoftmaxStep()
    step.poison = {1}
    steps = local(step, 3, elastic=0.5)
    assert not steps.run(step.initial(), Ticket(0, 0, 0, 9)).finite
    assert step.runs == 2
    assert steps.run(step.initial(), Ticket(1, 0, 9, 9)).finite


@pytest.mark.parametrize("blocks", [False, True])
def test_ways_are_taken_back(blocks: bool) -> None:
    random = np.random.default_rng(0)
    before, way = (random.normal(size=70_000).astype(np.float32) for _ in range(2))
    out, adding = np.empty_like(before), Adding(before.size, before.dtype, 0.5)
    adding.apply(before, (lambda low, high: way[low:high]) if blocks else way, out, 123.0, 0.25)
    np.testing.assert_allclose(out, before - 0.125 * way, rtol=1e-5, atol=1e-6)
    assert (adding.iterations, adding.slots) == (1, {})
