"""The modes by name: a new one is a line here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpitrain.cluster.roles import Roles
from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce.backends import AllReduceChoice
from mpitrain.exchange.allreduce.exchange import AllReduceExchange
from mpitrain.exchange.allreduce.updates import OptimizerFor, open_update
from mpitrain.exchange.base import Exchange, OnCut, Plan
from mpitrain.exchange.servers.decider import Asynchronous, Decider, Synchronous
from mpitrain.exchange.servers.exchange import ServerLoop, WorkerExchange
from mpitrain.exchange.servers.shards import cut
from mpitrain.parameters.layout import Layout


@dataclass(frozen=True)
class ModeSpec:
    """One mode.

    Args:
        decider: the policy of server 0; None where there are no servers.
        together: whether all workers share each update, so that a ticket is a global batch.
    """

    decider: type[Decider] | None
    together: bool

    def sharing(self, workers: int) -> int:
        """Workers that share one update."""
        return workers if self.together else 1


MODES: dict[str, ModeSpec] = {
    "allreduce": ModeSpec(None, together=True),
    "ps-sync": ModeSpec(Synchronous, together=True),
    "ps-async": ModeSpec(Asynchronous, together=False),
}


def shards_of(mode: str, roles: Roles, layout: Layout, elementwise: bool) -> list[slice]:
    """The slices of the vector that are held as a unit: one for each server, or the whole.

    Raises:
        InputError: where there are more servers than the vector can be shared among.
    """
    if MODES[mode].decider is None:
        return [slice(0, layout.size)]
    return cut(layout, len(roles.servers), elementwise)


def open_exchange(
    mode: str,
    world: World,
    roles: Roles,
    layout: Layout,
    shards: list[slice],
    parameters: np.ndarray,
    optimizer_for: OptimizerFor,
    plan: Plan,
    on_cut: OnCut,
    allreduce: AllReduceChoice = AllReduceChoice(),  # noqa: B008
) -> Exchange | ServerLoop:
    """This rank's end of the exchange; every rank of ``world`` must call it together.

    Args:
        mode: a key of ``MODES``.
        world: all ranks of the run.
        roles: who serves and who works.
        layout: of the parameter vector.
        shards: from :func:`shards_of`.
        parameters: the initial vector, shape ``(layout.size,)``; the servers', or rank 0's, counts.
        optimizer_for: makes the optimizer of a slice.
        plan: the run.
        on_cut: called by every rank at each cut.
        allreduce: how gradients are summed where there are no servers.

    Raises:
        InputError: where that cannot be done on these ranks.
    """
    policy = MODES[mode].decider
    if policy is None:
        update = open_update(allreduce, world, layout, optimizer_for)
        return AllReduceExchange(world, layout, parameters, update, plan, on_cut)
    if roles.works(world.rank):
        return WorkerExchange(world, roles, shards, layout, plan, on_cut)
    me = roles.servers.index(world.rank)
    decider = policy(roles.workers, plan) if me == 0 else None
    return ServerLoop(world, roles, shards, parameters, optimizer_for(shards[me]), plan, decider, on_cut)
