"""How long each back end takes to sum a vector, beside what copying that vector in memory takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce.backends import open_backend
from mpitrain.parameters.layout import Layout, aligned_zeros

_OPERATION = "measuring an all-reduce"
_FEWEST, _MOST = 3, 1000


@dataclass(frozen=True)
class Timing:
    """One way of one length.

    Args:
        elements: float32, of the vector.
        backend: its name, or ``memory copy``.
        seconds: median of one sum on the slowest rank.
        repeats: how many were timed.
    """

    elements: int
    backend: str
    seconds: float
    repeats: int

    @property
    def bytes_per_second(self) -> float:
        """Bytes of the vector over the time."""
        return 4 * self.elements / self.seconds if self.seconds else 0.0


def time_backends(world: World, sizes: Sequence[int], names: Sequence[str], seconds: float = 0.3) -> list[Timing]:
    """Time every back end at every length, in turn; every rank must call this together.

    Args:
        world: the ranks that sum.
        sizes: lengths in elements.
        names: keys of ``BACKENDS`` that can be used on these ranks.
        seconds: to spend on each, about.
    """
    found = []
    for size in sizes:
        layout = Layout.of([("vector", (size,))])
        gradient, copy = aligned_zeros(layout.size), aligned_zeros(layout.size)
        gradient[:] = world.rank + 1
        gradient.flags.writeable = False
        backends = [open_backend(name, world, layout) for name in names]
        everyone = [True] * world.size

        def summed(index: int) -> float:
            world.meet_closely(_OPERATION)
            begin = time.perf_counter()
            backends[index].put(gradient)  # noqa: B023 - called within the iteration
            world.meet_closely(_OPERATION)
            backends[index].sum(everyone, None)  # noqa: B023
            return time.perf_counter() - begin

        def copied() -> float:
            world.meet_closely(_OPERATION)
            begin = time.perf_counter()
            np.copyto(copy, gradient)  # noqa: B023
            return time.perf_counter() - begin

        times: list[list[float]] = [[] for _ in range(len(names) + 1)]
        for index in range(len(names)):
            summed(index)
        first = max(world.gather_all(max(summed(index) for index in range(len(names))), _OPERATION))
        repeats = min(_MOST, max(_FEWEST, int(seconds / max(first, 1e-9))))
        for _ in range(repeats):
            for index in range(len(names)):
                times[index].append(summed(index))
            times[-1].append(copied())
        medians = np.max(world.gather_all([float(np.median(t)) for t in times], _OPERATION), axis=0)
        labels = [*names, "memory copy"]
        found += [Timing(size, label, float(t), repeats) for label, t in zip(labels, medians, strict=True)]
        for backend in backends:
            backend.close()
    return found
