"""How many pushes servers take in a second where workers compute nothing, beside what the machine can copy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpitrain.cluster.roles import assign
from mpitrain.cluster.world import World
from mpitrain.exchange.base import Cut, Plan
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.registry import open_exchange, shards_of
from mpitrain.exchange.servers.exchange import ServerLoop
from mpitrain.exchange.tickets import TicketBook
from mpitrain.parameters.layout import Layout, aligned_zeros
from mpitrain.parameters.optimizers import OptimizerSpec, is_elementwise, make_optimizer
from mpitrain.parameters.step import StepResult

_OPERATION = "measuring servers"
_FIRST, _MOST = 4, 20_000  # pushes of each worker: to find out how many are to be timed, and no more than these
_COPY_SECONDS = 0.05


@dataclass(frozen=True)
class ServerTiming:
    """One way of one length.

    Args:
        mode: ``ps-sync`` or ``ps-async``.
        transport: ``shared``, ``both`` or ``mpi``.
        servers: number of servers.
        workers: number of workers.
        elements: float32, of the parameter vector.
        pushes: how many were timed.
        pushes_per_second: gradients applied, of all workers.
        bytes_per_second: of gradients pushed and parameters pulled, headers left out.
        copied_per_second: bytes that all ranks together copy from vector to vector of that length, at the same time.
        update_share: of the time, what the busiest server spends adding gradients and applying the optimizer.
    """

    mode: str
    transport: str
    servers: int
    workers: int
    elements: int
    pushes: int
    pushes_per_second: float
    bytes_per_second: float
    copied_per_second: float
    update_share: float


def time_servers(
    world: World,
    servers: int,
    sizes: Sequence[int],
    modes: Sequence[str],
    transports: Sequence[str],
    optimizer: OptimizerSpec,
    seconds: float = 0.5,
) -> list[ServerTiming]:
    """Time every mode and transport at every length; every rank must call this together.

    Args:
        world: the ranks, of which the first serve.
        servers: how many.
        sizes: lengths in elements.
        modes: with servers, keys of ``MODES``.
        transports: as ``open_exchange`` takes them.
        optimizer: what servers apply.
        seconds: to spend on each, about.

    Raises:
        InputError: where no worker would be left, or a shard would be empty.
    """
    found = []
    for size in sizes:
        layout = Layout.of([("vector", (size,))])
        copied = _copying(world, layout)
        for mode in modes:
            for transport in transports:
                workers = world.size - servers
                first, _ = time_pushes(world, servers, layout, mode, transport, optimizer, _FIRST * workers)
                each = min(_MOST, max(_FIRST, int(seconds * _FIRST / first)))
                pushes = each * workers
                taken, updating = time_pushes(world, servers, layout, mode, transport, optimizer, pushes)
                figures = pushes, pushes / taken, 2 * layout.nbytes * pushes / taken, copied, updating / taken
                found.append(ServerTiming(mode, transport, servers, workers, size, *figures))
    return found


def time_pushes(
    world: World,
    servers: int,
    layout: Layout,
    mode: str,
    transport: str,
    optimizer: OptimizerSpec,
    pushes: int,
    compute: float = 0.0,
) -> tuple[float, float]:
    """Seconds of ``pushes`` pushes of all workers, and of the busiest server's updates; the same on every rank.

    Args:
        world: the ranks, of which the first serve; every one must call this together.
        servers: how many.
        layout: of the parameter vector.
        mode: with servers, a key of ``MODES``.
        transport: as ``open_exchange`` takes it.
        optimizer: what servers apply.
        pushes: of all workers together; with ``ps-sync`` a multiple of their number.
        compute: seconds that a worker sleeps before each push.
    """
    roles = assign(mode, world.size, servers)
    policy = Policy(mode, len(roles.workers))
    book = TicketBook(1000 * policy.parts, policy.parts, None, pushes // policy.sharing, policy.tickets)
    gradient = aligned_zeros(layout.size, layout.dtype)
    gradient[:] = 1.0 + world.rank

    def met(version: int, why: Cut) -> bool:
        world.meet(_OPERATION)
        return False

    result = StepResult(gradient, 1.0, np.array([1.0, 1.0, 1.0]))
    exchange = open_exchange(
        policy,
        world,
        roles,
        layout,
        shards_of(roles, layout, is_elementwise(optimizer)),
        aligned_zeros(layout.size, layout.dtype),
        lambda part: make_optimizer(optimizer, layout, part.start, part.stop),
        Plan(book, book.cuts(None, "steps"), lambda version: 1e-3, result.sums.size),
        met,
        transport=transport,
    )
    world.meet(_OPERATION)
    begin = time.perf_counter()
    if isinstance(exchange, ServerLoop):
        exchange.serve()
    else:
        ticket = exchange.start()
        while ticket is not None:
            if compute:
                time.sleep(compute)
            ticket = exchange.finish(result)
    taken = time.perf_counter() - begin
    exchange.close()
    updating = exchange.server.update_seconds if isinstance(exchange, ServerLoop) else 0.0
    slowest, busiest = np.max(world.gather_all((taken, updating), _OPERATION), axis=0)
    return float(slowest), float(busiest)


def _copying(world: World, layout: Layout) -> float:
    """Bytes a second that all ranks together copy, all at the same time."""
    source, target = (aligned_zeros(layout.size, layout.dtype) for _ in range(2))
    source[:] = target[:] = 1.0
    copies = 0
    world.meet_closely(_OPERATION)
    begin = time.perf_counter()
    while (taken := time.perf_counter() - begin) < _COPY_SECONDS or not copies:
        np.copyto(target, source)
        copies += 1
    return float(sum(world.gather_all(copies * layout.nbytes / taken, _OPERATION)))
