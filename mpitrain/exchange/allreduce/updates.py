"""Who applies the optimizer to the sum of all gradients: every rank to everything, or each to its own slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce.backend import Backend, OwningBackend
from mpitrain.exchange.allreduce.backends import AllReduceChoice, open_backend
from mpitrain.exchange.base import Portion, Spent, Stopwatch
from mpitrain.parameters.layout import Layout
from mpitrain.parameters.optimizers import SliceOptimizer

OptimizerFor = Callable[[slice], SliceOptimizer]
_NOTHING = np.empty(0)


class EveryoneUpdates:
    """Every rank applies the optimizer to the whole sum.

    Args:
        backend: makes the sum.
        optimizer: of the whole vector.
    """

    def __init__(self, backend: Backend, optimizer: SliceOptimizer) -> None:
        self.backend, self._optimizer = backend, optimizer
        self._parameters = _NOTHING

    def begin(self, parameters: np.ndarray) -> np.ndarray:
        """Start from ``parameters``; returns where they are read."""
        self._parameters = parameters
        return parameters

    def step(
        self,
        used: list[bool],
        factors: list[float] | None,
        rate: float,
        scale: float,
        spent: Spent,
        watch: Stopwatch,
    ) -> np.ndarray:
        """Sum what all have put, and update; returns the new parameters."""
        total = self.backend.sum(used, factors)
        spent.exchange += watch.lap()
        self._optimizer.apply(self._parameters, total, self._parameters, rate, scale)
        spent.update += watch.lap()
        return self._parameters

    def portion(self) -> Portion:
        """All that every rank holds."""
        return Portion(slice(0, self._parameters.size), self._parameters, self._optimizer, shared=True)


class OwnersUpdate:
    """Each rank sums its own slice and applies the optimizer to it, block by block; the others read what comes out.

    An element is summed and updated once, with the same operations in the same order as if every rank did it.

    Args:
        backend: gives each rank a slice.
        optimizer: of this rank's slice.
    """

    def __init__(self, backend: OwningBackend, optimizer: SliceOptimizer) -> None:
        self.backend, self._optimizer = backend, optimizer
        self._now, self._next = backend.buffers()

    def begin(self, parameters: np.ndarray) -> np.ndarray:
        """Start from ``parameters``; returns where they are read."""
        self._now[self.backend.own] = parameters[self.backend.own]
        self.backend.publish(self._now)
        return self._now

    def step(
        self,
        used: list[bool],
        factors: list[float] | None,
        rate: float,
        scale: float,
        spent: Spent,
        watch: Stopwatch,
    ) -> np.ndarray:
        """Sum what all have put, and update; returns the new parameters, in the buffer that nobody reads any more."""
        own = self.backend.own
        blocks = self.backend.sum_own(used, factors)
        self._optimizer.apply(self._now[own], blocks, self._next[own], rate, scale)
        spent.update += watch.lap()
        self.backend.publish(self._next)
        spent.exchange += watch.lap()
        self._now, self._next = self._next, self._now
        return self._now

    def portion(self) -> Portion:
        """What this rank owns."""
        own = self.backend.own
        return Portion(own, self._now[own], self._optimizer)


def open_update(
    choice: AllReduceChoice, world: World, layout: Layout, optimizer_for: OptimizerFor
) -> EveryoneUpdates | OwnersUpdate:
    """What ``choice`` says, for vectors of ``layout``; every rank must call this together.

    Raises:
        InputError: where it cannot be done on these ranks.
    """
    backend = open_backend(choice.backend, world, layout, choice.wire)
    if choice.owners_update:
        owning = cast(OwningBackend, backend)
        return OwnersUpdate(owning, optimizer_for(owning.own))
    return EveryoneUpdates(backend, optimizer_for(slice(0, layout.size)))
