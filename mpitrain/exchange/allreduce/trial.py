"""How long each way of summing takes here: tried on short vectors, and on longer ones as far as time allows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce.backend import Backend, OwningBackend
from mpitrain.exchange.allreduce.backends import open_backend
from mpitrain.parameters.blocked import GIVEN_BLOCK
from mpitrain.parameters.layout import Layout, aligned_zeros

BUDGET = 0.25
"""Seconds for all ways and lengths together."""

_SHORT, _MIDDLE = 4096, 131072  # elements of the first two trials
_EACH = 0.01  # seconds to spend on a way at a length, where it takes less than half of that
_FEWEST, _MOST = 2, 100  # sums of a trial, beside the first, which finds its memory untouched
_OPERATION = "choosing an all-reduce"


@dataclass
class Line:
    """Seconds over elements, from trials of one way.

    Args:
        trials: (elements, seconds), ascending.
    """

    trials: list[tuple[int, float]] = field(default_factory=list)

    @property
    def slope(self) -> float:
        """Seconds for one more element, by the two longest trials."""
        if len(self.trials) < 2:
            return 0.0
        (n, t), (more, longer) = self.trials[-2:]
        return max(0.0, (longer - t) / (more - n))

    @property
    def latency(self) -> float:
        """Seconds for no elements at all, by the shortest trial."""
        n, t = self.trials[0]
        return max(0.0, t - n * self.slope)

    def at(self, elements: int) -> float:
        """Seconds for ``elements``, measured or by the slope from the longest trial on."""
        n, t = self.trials[-1]
        return t + (elements - n) * self.slope


@dataclass(frozen=True)
class Tried:
    """What the trials of one back end gave.

    Args:
        whole: a sum that every rank has.
        owned: a sum by its owners, and handing round what they made of it; None where no rank owns a slice.
    """

    whole: Line
    owned: Line | None


def try_backends(
    world: World, size: int, dtype: np.dtype, names: Sequence[str], wire: str = "float32"
) -> Mapping[str, Tried]:
    """Time back ends on the slowest rank; every rank must call this together, and gets the same.

    Args:
        world: the ranks that sum.
        size: elements of the vector that matters.
        dtype: of its elements.
        names: keys of ``BACKENDS`` that can be used on these ranks.
        wire: the type in which gradients travel.
    """
    lines: dict[str, Tried] = {}
    spent, reached = 0.0, 0
    # Lengths lie well apart, that the slope between them means something.
    for length in dict.fromkeys((min(_SHORT, size // 8), size if size < 2 * _MIDDLE else _MIDDLE)):
        if length or not size:
            spent += _trial(world, length, dtype, names, wire, lines)
            reached = length
    # A sum of the next length is made three times at least, in each way.
    slopes = sum(line.slope for tried in lines.values() for line in (tried.whole, tried.owned) if line)
    affordable = max(0, int((BUDGET - spent) / (1 + _FEWEST) / slopes)) if slopes else size
    if (length := min(size, affordable)) >= 2 * reached > 0:
        _trial(world, length, dtype, names, wire, lines)
    return lines


def _trial(
    world: World, length: int, dtype: np.dtype, names: Sequence[str], wire: str, lines: dict[str, Tried]
) -> float:
    """Time every back end at one length; the seconds that it took, the same on all ranks."""
    begin = time.perf_counter()
    gradient = aligned_zeros(length, dtype)
    gradient.flags.writeable = False
    for name in names:
        backend = open_backend(name, world, Layout((), dtype, length), wire)
        owns = hasattr(backend, "sum_own")
        tried = lines.setdefault(name, Tried(Line(), Line() if owns else None))
        tried.whole.trials.append((length, _fastest(backend, world, gradient, False)))
        if tried.owned is not None:
            tried.owned.trials.append((length, _fastest(backend, world, gradient, True)))
        world.meet_closely(_OPERATION)
        backend.close()
    return float(max(world.gather_all(time.perf_counter() - begin, _OPERATION)))


def _fastest(backend: Backend, world: World, gradient: np.ndarray, owned: bool) -> float:
    buffer = cast(OwningBackend, backend).buffers()[0] if owned else None
    first = max(world.gather_all(_once(backend, world, gradient, buffer), _OPERATION))
    repeats = min(_MOST, max(_FEWEST, int(_EACH / max(first, 1e-9))))
    # What else the machine does meanwhile only adds.
    fastest = min(_once(backend, world, gradient, buffer) for _ in range(repeats))
    return float(max(world.gather_all(fastest, _OPERATION)))


def _once(backend: Backend, world: World, gradient: np.ndarray, buffer: np.ndarray | None) -> float:
    used = [True] * world.size
    world.meet_closely(_OPERATION)
    begin = time.perf_counter()
    backend.put(gradient)
    world.meet_closely(_OPERATION)
    if buffer is None:
        backend.sum(used, None)
    else:
        owning = cast(OwningBackend, backend)
        own, blocks = owning.own, owning.sum_own(used, None)
        for low in range(own.start, own.stop, GIVEN_BLOCK):
            high = min(low + GIVEN_BLOCK, own.stop)
            buffer[low:high] = blocks(low - own.start, high - own.start)
        owning.publish(buffer)
    return time.perf_counter() - begin
