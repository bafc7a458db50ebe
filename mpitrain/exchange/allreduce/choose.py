"""Choosing how gradients are summed, by measuring: the fastest way depends on the vector, the ranks and the wires."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from mpitrain.cluster.world import World
from mpitrain.errors import InputError
from mpitrain.exchange.allreduce.backends import BACKENDS, AllReduceChoice, candidates, usable
from mpitrain.exchange.allreduce.trial import Tried, try_backends
from mpitrain.exchange.allreduce.updates import OptimizerFor
from mpitrain.parameters.layout import Layout, aligned_zeros

_SAMPLE = 1 << 20  # elements of which an update is timed, at most
_OPERATION = "choosing an all-reduce"


@dataclass(frozen=True)
class Measured:
    """What was chosen, and from what.

    Args:
        choice: the same on every rank.
        seconds: of summing and updating once; empty where nothing had to be measured.
        fits: back end → seconds of a sum before its first byte, and bytes of the vector per second from then on.
        reason: why that was so.
    """

    choice: AllReduceChoice
    seconds: Mapping[AllReduceChoice, float] = field(default_factory=dict)
    fits: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    reason: str = "as asked"

    def describe(self) -> str:
        """For people."""
        told = ", ".join(f"{choice.name} {seconds * 1e3:.3g} ms" for choice, seconds in self.seconds.items())
        return f"all-reduce: {self.choice.name} ({told or self.reason})"


def choose_allreduce(
    world: World,
    layout: Layout,
    backend: str,
    owners: str,
    elementwise: bool,
    optimizer_for: OptimizerFor,
    wire: str = "float32",
) -> Measured:
    """Settle on a back end, and on who applies the optimizer; every rank must call this together.

    Args:
        world: the ranks that sum.
        layout: of the gradient.
        backend: a key of ``BACKENDS``, or ``auto``.
        owners: ``on``, ``off`` or ``auto``: whether each rank updates its own slice alone.
        elementwise: whether the optimizer may be cut anywhere.
        optimizer_for: makes the optimizer of a slice, to be thrown away.
        wire: the type in which gradients travel.

    Raises:
        InputError: where what was asked for cannot be done on these ranks or with this optimizer.
    """
    if backend != "auto" and (why := usable(backend, world)):
        raise InputError(f"--allreduce {backend} cannot be used here: {why}; use --allreduce auto")
    if backend != "auto" and owners == "on" and (why := _not_owners(backend, elementwise)):
        raise InputError(f"--shard-optimizer on cannot be used here: {why}; use --shard-optimizer off")
    names = candidates(world, wire) if backend == "auto" else [backend]
    choices = [
        AllReduceChoice(name, owned, wire)
        for name in names
        for owned in (True, False)
        if not (owned and (_not_owners(name, elementwise) or owners == "off" or world.size == 1))
        and not (not owned and owners == "on" and world.size > 1)
    ]
    if not choices:
        raise InputError(
            "--shard-optimizer on cannot be used here: no all-reduce on these ranks gives each a slice that this "
            "optimizer can be applied to; use --shard-optimizer off"
        )
    if world.size == 1 or len(choices) == 1:
        return Measured(choices[-1])
    tried = try_backends(world, layout.size, layout.dtype, [*dict.fromkeys(c.backend for c in choices)], wire)
    update = 0.0
    if any(choice.owners_update for choice in choices) and not all(choice.owners_update for choice in choices):
        update = _update_seconds(world, layout, optimizer_for)
    seconds = {choice: _seconds(choice, tried[choice.backend], layout.size, update, world.size) for choice in choices}
    return Measured(min(seconds, key=seconds.__getitem__), seconds, fits_of(tried, layout))


def fits_of(tried: Mapping[str, Tried], layout: Layout) -> dict[str, tuple[float, float | None]]:
    """Latency and bandwidth of each back end, as :class:`Measured` has them."""
    return {
        name: (t.whole.latency, layout.dtype.itemsize / t.whole.slope if t.whole.slope else None)
        for name, t in tried.items()
    }


def _seconds(choice: AllReduceChoice, tried: Tried, size: int, update: float, ranks: int) -> float:
    if choice.owners_update and tried.owned is not None:
        return tried.owned.at(size) + update / ranks
    return tried.whole.at(size) + update


def _update_seconds(world: World, layout: Layout, optimizer_for: OptimizerFor) -> float:
    """Seconds to apply an elementwise optimizer to a whole vector, on the slowest rank."""
    part = slice(0, min(layout.size, _SAMPLE))
    optimizer = optimizer_for(part)
    vector, gradient = aligned_zeros(part.stop, layout.dtype), aligned_zeros(part.stop, layout.dtype)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        optimizer.apply(vector, gradient, vector, 0.0)
        times.append(time.perf_counter() - begin)
    return float(max(world.gather_all(min(times), _OPERATION))) * layout.size / max(part.stop, 1)


def _not_owners(backend: str, elementwise: bool) -> str:
    """Why ranks cannot each update a slice; empty where they can."""
    if not hasattr(BACKENDS[backend], "sum_own"):
        return f"with --allreduce {backend} no rank owns a slice"
    if not elementwise:
        return "this optimizer needs whole variables, and a slice cuts through them"
    return ""
