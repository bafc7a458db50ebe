"""All-reduce as the benchmarks run it: a number of steps with nothing but the exchange around them."""

from __future__ import annotations

from mpitrain.cluster.roles import assign
from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce.backends import AllReduceChoice
from mpitrain.exchange.allreduce.exchange import AllReduceExchange
from mpitrain.exchange.base import Plan
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.registry import open_exchange
from mpitrain.exchange.tickets import TicketBook
from mpitrain.parameters.optimizers import make_optimizer
from mpitrain.training.setup import Setup


def open_allreduce(setup: Setup, world: World, steps: int, way: AllReduceChoice) -> AllReduceExchange:
    """An exchange of ``steps`` updates without evaluations; every rank of ``world`` must call it together.

    Args:
        setup: ready on this rank.
        world: the ranks that exchange.
        steps: updates.
        way: how gradients are summed.
    """
    about = setup.description
    book = TicketBook(about.samples, about.batch_size * world.size, None, steps)
    exchange = open_exchange(
        Policy("allreduce", world.size),
        world,
        assign("allreduce", world.size, 0),
        about.layout,
        [slice(0, about.layout.size)],
        setup.initial,
        lambda part: make_optimizer(about.optimizer, about.layout, part.start, part.stop),
        Plan(book, book.cuts(None, "steps"), lambda version: about.rate, about.sums),
        lambda version, why: False,
        way,
    )
    assert isinstance(exchange, AllReduceExchange)
    return exchange
