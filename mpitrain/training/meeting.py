"""What all ranks do together at a cut: agree on the parameters, evaluate, share the history."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from mpitrain.cluster.roles import Roles
from mpitrain.cluster.waiting import now
from mpitrain.cluster.world import World
from mpitrain.data.mnist import Split
from mpitrain.errors import AgreementError
from mpitrain.parameters.step import GradientStep
from mpitrain.training.feed import Feed


def fingerprints(vector: np.ndarray, shards: Sequence[slice]) -> list[str]:
    """A hash of each shard of a parameter vector."""
    return [hashlib.blake2b(vector[s].data, digest_size=16).hexdigest() for s in shards]


def check_agreement(world: World, mine: Sequence[str | None], chief: int, version: int) -> None:
    """Compare the fingerprints of all ranks with the chief's.

    Args:
        world: all ranks; each must call it.
        mine: this rank's hash of each shard, None for a shard that it does not hold.
        chief: the rank to compare with.
        version: of the parameters.

    Raises:
        AgreementError: on every rank, naming the first that differs.
    """
    everyone = world.gather_all(list(mine), "comparing parameters", version)
    wanted = everyone[chief]
    for rank, theirs in enumerate(everyone):
        for theirs_of, ours in zip(theirs, wanted, strict=True):
            if theirs_of is not None and theirs_of != ours:
                raise AgreementError(
                    f"the parameters of {world.name(rank)} differ from those of {world.name(chief)} at step {version}: "
                    "the run ends, because its result would depend on which rank is asked"
                )


def evaluate(
    world: World,
    roles: Roles,
    step: GradientStep | None,
    feed: Feed | None,
    parameters: np.ndarray | None,
    split: str,
    sums: int,
    version: int,
) -> np.ndarray:
    """``StepResult.sums`` over a whole split (``validation`` or ``test``); each worker computes its part of it."""
    mine = np.zeros(sums)
    if roles.works(world.rank):
        assert step is not None
        assert feed is not None
        assert parameters is not None
        data: Split = getattr(feed.dataset, split)
        for batch in feed.part(data, roles.workers.index(world.rank), len(roles.workers)):
            now.work("evaluating", version)
            mine += step.evaluate(parameters, batch)
    return world.sum_all(mine, "evaluation", version)


def average_over_workers(world: World, state: np.ndarray | None, weight: float, size: int, version: int) -> np.ndarray:
    """The workers' float states averaged by weight: one of its own for all asynchronous workers to go on from.

    Args:
        world: all ranks; each must call it.
        state: this worker's, None on a server.
        weight: this worker's; samples that it has seen.
        size: length of the state.
        version: of the parameters.
    """
    mine = np.zeros(1 + size)
    if state is not None:
        mine[0], mine[1:] = weight, weight * state
    total = world.sum_all(mine, "averaging state", version)
    return total[1:] / total[0] if total[0] else (state if state is not None else np.zeros(size))
