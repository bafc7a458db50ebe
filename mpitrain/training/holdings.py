"""Which rank holds, and saves, which part of which vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from mpitrain.checkpoints.packing import Holding, Packing
from mpitrain.cluster.world import World
from mpitrain.exchange.base import Portion
from mpitrain.parameters.layout import Layout
from mpitrain.parameters.optimizers import OptimizerSpec, SliceOptimizer, is_elementwise
from mpitrain.training.local import LocalSteps

PARAMETERS, OPTIMIZER, POLICY, WORKER = "parameters", "optimizer.", "policy.", "worker."
"""The names of stored vectors: the parameters, and before the names of what an optimizer or a policy keeps. What one
worker alone has begins with ``worker.K.``."""


@dataclass(frozen=True)
class Kept:
    """Something that this rank holds of a vector.

    Args:
        holding: where.
        store: takes memory as ``holding.load`` gave it, with other content.
        shared: whether every rank that has the vector holds all of it.
    """

    holding: Holding
    store: Callable[[np.ndarray], None]
    shared: bool = False


class Holdings:
    """What the ranks hold together; every rank must make it at the same time.

    Args:
        world: all ranks.
        mine: what this rank holds.
        sees: whether this rank sees the folder of the checkpoints.
    """

    def __init__(self, world: World, mine: list[Kept], sees: bool) -> None:
        self._rank = world.rank
        told = world.gather_all(
            ({kept.holding.name: (kept.holding.size, kept.shared) for kept in mine}, sees),
            "comparing what the ranks hold",
        )
        self.sees: list[bool] = [seen for _, seen in told]
        """Of each rank, whether it sees the folder."""
        self.totals: dict[str, int] = {}
        """Elements of each vector, without padding."""
        self._starts: dict[str, int] = {}
        self._writers: dict[str, list[int]] = {}
        for rank, (held, seen) in enumerate(told):
            for name, (size, shared) in held.items():
                before = self.totals.get(name, 0)
                if rank == world.rank:
                    self._starts[name] = before
                self.totals[name] = size if shared else before + size
                # Who holds the same shares the work of those that see the folder.
                if seen or not shared:
                    self._writers.setdefault(name, []).append(rank)
        self._shared = {name for held, _ in told for name, (_, shared) in held.items() if shared}
        self.writers = sorted({rank for ranks in self._writers.values() for rank in ranks})
        """Ranks that save something."""

    def placed(self, mine: list[Kept]) -> list[Kept]:
        """What this rank holds, each stretch in its place: where that is not known, behind those of lower ranks."""
        return [
            kept
            if kept.holding.packing is not None or kept.shared
            else replace(kept, holding=replace(kept.holding, start=self._starts[kept.holding.name]))
            for kept in mine
        ]

    def saved(self, mine: list[Kept]) -> list[tuple[Holding, int, int]]:
        """What this rank saves: which, from and to."""
        chosen = []
        for kept in self.placed(mine):
            name = kept.holding.name
            writers = self._writers.get(name, [])
            if name not in self._shared:
                chosen.append((kept.holding, *kept.holding.part(0, 1)))
            elif self._rank in writers:
                chosen.append((kept.holding, *kept.holding.part(writers.index(self._rank), len(writers))))
        return chosen


def kept_of(
    layout: Layout, spec: OptimizerSpec, portion: Portion | None, worker: int, local: LocalSteps | None
) -> list[Kept]:
    """All vectors that this rank holds a part of.

    Args:
        layout: of the parameter vector.
        spec: of the optimizers.
        portion: what the exchange holds on this rank.
        worker: this rank's index among the workers.
        local: what the worker trains alone with, where it does.
    """
    packing = Packing(layout)
    kept: list[Kept] = []
    if portion is not None:
        low, high = packing.packed(portion.part.start), packing.packed(portion.part.stop)
        place = _Place(packing, low, high - low, portion.part.start, portion.shared)
        kept.append(place.vector(PARAMETERS, portion.parameters))
        kept += [place.vector(POLICY + name, array) for name, array in portion.kept.items()]
        kept += place.slots(OPTIMIZER, portion.optimizer, is_elementwise(spec))
    if local is not None:
        place, name = _Place(packing, 0, packing.size), f"{WORKER}{worker}."
        kept += place.slots(name + OPTIMIZER, local.optimizer, is_elementwise(spec))
        if local.own is not None:
            kept.append(place.vector(name + PARAMETERS, local.own))
    return kept


@dataclass(frozen=True)
class _Place:
    """A slice of the parameter vector, for which things are kept."""

    packing: Packing
    start: int
    size: int
    offset: int = 0
    shared: bool = False

    def vector(self, name: str, array: np.ndarray) -> Kept:
        """Something that is laid out as the parameters."""
        holding = Holding(name, array.dtype, self.size, lambda: array, self.start, self.packing, self.offset)
        return Kept(holding, _in_place, self.shared)

    def slots(self, prefix: str, optimizer: SliceOptimizer, elementwise: bool) -> Iterator[Kept]:
        """The state of an optimizer, which is laid out as the parameters only where it is elementwise."""
        for slot, (size, dtype) in optimizer.slot_types.items():

            def load(slot: str = slot) -> np.ndarray:
                return optimizer.slot(slot)

            def store(memory: np.ndarray, slot: str = slot) -> None:
                optimizer.set_slot(slot, memory)

            if elementwise:
                holding = Holding(prefix + slot, dtype, self.size, load, self.start, self.packing, self.offset)
            else:
                holding = Holding(prefix + slot, dtype, size, load)
            yield Kept(holding, store, self.shared)


def _in_place(memory: np.ndarray) -> None:
    """What was loaded is the memory itself."""
