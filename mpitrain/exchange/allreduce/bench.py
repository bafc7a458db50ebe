"""How long each back end takes to sum a vector, beside what no way can go below: the memory's and the wire's speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpitrain.cluster.wire_speed import wire_speed
from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce.backends import NARROWING, candidates, open_backend
from mpitrain.exchange.allreduce.trial import try_backends
from mpitrain.parameters.layout import Layout, aligned_zeros

_OPERATION = "measuring an all-reduce"
_FEWEST, _MOST = 3, 1000


@dataclass(frozen=True)
class Timing:
    """One way of one length.

    Args:
        elements: float32, of the vector.
        backend: its name, ``memory copy``, or ``wire limit``.
        seconds: median of one sum on the slowest rank.
        repeats: how many were timed; 0 for a limit that was computed.
        chosen: whether ``--allreduce auto`` would take it.
    """

    elements: int
    backend: str
    seconds: float
    repeats: int
    chosen: bool = False

    @property
    def bytes_per_second(self) -> float:
        """Bytes of the vector over the time."""
        return 4 * self.elements / self.seconds if self.seconds else 0.0


def time_backends(
    world: World, sizes: Sequence[int], names: Sequence[str], seconds: float = 0.3, wire: str = "float32"
) -> list[Timing]:
    """Time every back end at every length, in turn; every rank must call this together.

    Args:
        world: the ranks that sum.
        sizes: lengths in elements.
        names: keys of ``BACKENDS`` that can be used on these ranks.
        seconds: to spend on each, about.
        wire: the type in which elements travel, by those that can narrow them.
    """
    found = []
    speed, hosts = wire_speed(world), len(set(world.leaders))
    for size in sizes:
        layout = Layout.of([("vector", (size,))])
        gradient, copy = aligned_zeros(layout.size), aligned_zeros(layout.size)
        gradient[:] = world.rank + 1
        gradient.flags.writeable = False
        backends = [open_backend(name, world, layout, wire if name in NARROWING else "float32") for name in names]
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
        auto = _auto(world, layout, names)
        labels = [*names, "memory copy"]
        found += [Timing(size, la, float(t), repeats, la == auto) for la, t in zip(labels, medians, strict=True)]
        if speed is not None:
            # A host sends 2 (K - 1) / K of the vector at least, however many ranks it has.
            found.append(Timing(size, "wire limit", 2 * (hosts - 1) / hosts * 4 * size / speed, 0))
        for backend in backends:
            backend.close()
    return found


def _auto(world: World, layout: Layout, names: Sequence[str]) -> str | None:
    """Which of ``names`` the choice at the start of a run would take for the sum alone."""
    could = [name for name in candidates(world) if name in names]
    if len(could) < 2 or world.size == 1:
        return None
    tried = try_backends(world, layout.size, layout.dtype, could)
    return min(could, key=lambda name: tried[name].whole.at(layout.size))
