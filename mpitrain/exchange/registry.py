"""The modes by name: a new one is a line here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpitrain.cluster.roles import Roles
from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce.backends import AllReduceChoice
from mpitrain.exchange.allreduce.exchange import AllReduceExchange
from mpitrain.exchange.allreduce.updates import OptimizerFor, open_update
from mpitrain.exchange.base import Exchange, OnCut, Plan
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.servers.decider import Decider
from mpitrain.exchange.servers.exchange import ServerLoop, WorkerExchange
from mpitrain.exchange.servers.policies import Asynchronous, Backed, Synchronous
from mpitrain.exchange.servers.shards import cut
from mpitrain.exchange.servers.transport import SharedVectors
from mpitrain.parameters.layout import Layout

Make = Callable[[Policy, tuple[int, ...], Plan], Decider]


def _synchronous(policy: Policy, workers: tuple[int, ...], plan: Plan) -> Decider:
    if policy.backup_workers:
        return Backed(workers, plan, policy.sharing)
    return Synchronous(workers, plan, policy.depth)


def _asynchronous(policy: Policy, workers: tuple[int, ...], plan: Plan) -> Decider:
    return Asynchronous(workers, plan, policy.staleness_bound, policy.soft_quorum, policy.depth)


MODES: dict[str, Make | None] = {"allreduce": None, "ps-sync": _synchronous, "ps-async": _asynchronous}
"""What makes server 0's decider; None where there are no servers."""


def shards_of(roles: Roles, layout: Layout, elementwise: bool) -> list[slice]:
    """The slices of the vector that are held as a unit: one for each server, or the whole.

    Raises:
        InputError: where there are more servers than the vector can be shared among.
    """
    if not roles.servers:
        return [slice(0, layout.size)]
    return cut(layout, len(roles.servers), elementwise)


def open_exchange(
    policy: Policy,
    world: World,
    roles: Roles,
    layout: Layout,
    shards: list[slice],
    parameters: np.ndarray,
    optimizer_for: OptimizerFor,
    plan: Plan,
    on_cut: OnCut,
    allreduce: AllReduceChoice = AllReduceChoice(),  # noqa: B008
    transport: str = "mpi",
) -> Exchange | ServerLoop:
    """This rank's end of the exchange; every rank of ``world`` must call it together.

    Args:
        policy: its mode is a key of ``MODES``.
        world: all ranks of the run.
        roles: who serves and who works.
        layout: of the parameter vector.
        shards: from :func:`shards_of`.
        parameters: the initial vector, shape ``(layout.size,)``; the servers', or rank 0's, counts.
        optimizer_for: makes the optimizer of a slice.
        plan: the run.
        on_cut: called by every rank at each cut.
        allreduce: how gradients are summed where there are no servers.
        transport: how gradients and parameters get to and from servers: ``mpi`` as messages, ``shared`` through the
            memory of the only node, or ``both``: through its memory within a node, as messages between nodes.

    Raises:
        InputError: where that cannot be done on these ranks.
    """
    make = MODES[policy.mode]
    if make is None:
        update = open_update(allreduce, world, layout, optimizer_for)
        return AllReduceExchange(world, layout, parameters, update, plan, on_cut)
    memory = SharedVectors(world, roles, layout, policy.depth) if transport in ("shared", "both") else None
    if roles.works(world.rank):
        return WorkerExchange(world, roles, shards, layout, plan, on_cut, memory, policy.depth)
    me = roles.servers.index(world.rank)
    decider = make(policy, roles.workers, plan) if me == 0 else None
    optimizer = optimizer_for(shards[me])
    return ServerLoop(world, roles, shards, layout, parameters, optimizer, policy, plan, decider, on_cut, memory)
