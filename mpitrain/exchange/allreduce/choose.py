"""Choosing how gradients are summed, by measuring: the fastest way depends on the vector, the ranks and the wires."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mpitrain.cluster.world import World
from mpitrain.errors import InputError
from mpitrain.exchange.allreduce.backends import AUTO, BACKENDS, AllReduceChoice, usable
from mpitrain.exchange.allreduce.updates import EveryoneUpdates, OptimizerFor, OwnersUpdate, open_update
from mpitrain.exchange.base import Spent, Stopwatch
from mpitrain.parameters.layout import Layout, aligned_zeros

_SECONDS = 0.04
"""For each way; the first step, which finds its memory untouched, comes on top."""

_FEWEST, _MOST = 2, 200
_OPERATION = "choosing an all-reduce"


@dataclass(frozen=True)
class Measured:
    """What was chosen, and from what.

    Args:
        choice: the same on every rank.
        seconds: of summing and updating once; empty where nothing had to be measured.
        reason: why that was so.
    """

    choice: AllReduceChoice
    seconds: Mapping[AllReduceChoice, float] = field(default_factory=dict)
    reason: str = "as asked"

    def describe(self) -> str:
        """For people."""
        told = ", ".join(f"{choice.name} {seconds * 1e3:.3g} ms" for choice, seconds in self.seconds.items())
        return f"all-reduce: {self.choice.name} ({told or self.reason})"


def choose_allreduce(
    world: World, layout: Layout, backend: str, owners: str, elementwise: bool, optimizer_for: OptimizerFor
) -> Measured:
    """Settle on a back end, and on who applies the optimizer; every rank must call this together.

    Args:
        world: the ranks that sum.
        layout: of the gradient.
        backend: a key of ``BACKENDS``, or ``auto``.
        owners: ``on``, ``off`` or ``auto``: whether each rank updates its own slice alone.
        elementwise: whether the optimizer may be cut anywhere.
        optimizer_for: makes the optimizer of a slice, to be thrown away.

    Raises:
        InputError: where what was asked for cannot be done on these ranks or with this optimizer.
    """
    if backend != "auto" and (why := usable(backend, world)):
        raise InputError(f"--allreduce {backend} cannot be used here: {why}; use --allreduce auto")
    if backend != "auto" and owners == "on" and (why := _not_owners(backend, elementwise)):
        raise InputError(f"--shard-optimizer on cannot be used here: {why}; use --shard-optimizer off")
    choices = [
        AllReduceChoice(name, owned)
        for name in (AUTO if backend == "auto" else [backend])
        for owned in (True, False)
        if not usable(name, world)
        and not (owned and (_not_owners(name, elementwise) or owners == "off" or world.size == 1))
        and not (not owned and owners == "on" and world.size > 1)
    ]
    if not choices:
        raise InputError(
            "--shard-optimizer on cannot be used here: no all-reduce on these ranks gives each a slice that this "
            "optimizer can be applied to; use --shard-optimizer off"
        )
    if world.size == 1 or len(choices) == 1:
        return Measured(choices[-1])
    seconds = measure(world, layout, choices, optimizer_for)
    return Measured(min(seconds, key=seconds.__getitem__), seconds)


def measure(
    world: World, layout: Layout, choices: Sequence[AllReduceChoice], optimizer_for: OptimizerFor
) -> dict[AllReduceChoice, float]:
    """Seconds of summing a vector of ``layout`` and updating, in each way, on the slowest rank; equal on every rank."""
    gradient = aligned_zeros(layout.size, layout.dtype)
    found = {}
    for choice in choices:
        update = open_update(choice, world, layout, optimizer_for)
        update.begin(aligned_zeros(layout.size, layout.dtype))
        _once(update, world, gradient)
        first = max(world.gather_all(_once(update, world, gradient), _OPERATION))
        repeats = min(_MOST, max(_FEWEST, int(_SECONDS / max(first, 1e-9))))
        times = sorted(_once(update, world, gradient) for _ in range(repeats))
        update.backend.close()
        found[choice] = max(world.gather_all(times[len(times) // 2], _OPERATION))
    return found


def _once(update: EveryoneUpdates | OwnersUpdate, world: World, gradient: np.ndarray) -> float:
    world.meet_closely(_OPERATION)
    begin = time.perf_counter()
    update.backend.put(gradient)
    world.meet_closely(_OPERATION)
    update.step([True] * world.size, None, 0.0, 1.0, Spent(), Stopwatch())
    return time.perf_counter() - begin


def _not_owners(backend: str, elementwise: bool) -> str:
    """Why ranks cannot each update a slice; empty where they can."""
    if not hasattr(BACKENDS[backend], "sum_own"):
        return f"with --allreduce {backend} no rank owns a slice"
    if not elementwise:
        return "this optimizer needs whole variables, and a slice cuts through them"
    return ""
