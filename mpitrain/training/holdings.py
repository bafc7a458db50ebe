"""Which rank holds, and saves, which part of the vectors."""

from __future__ import annotations

import numpy as np

from mpitrain.checkpoints.packing import Holding, Packing
from mpitrain.cluster.world import World
from mpitrain.exchange.base import Portion
from mpitrain.parameters.layout import Layout

PARAMETERS, OPTIMIZER = "parameters", "optimizer."
"""The names of stored vectors: the parameters, and before the name of an optimizer's slot."""


class Holdings:
    """What each rank holds; every rank must make it together.

    Args:
        world: all ranks.
        layout: of the parameter vector.
        elementwise: whether the optimizer's slots are laid out as the parameters; else they are not padded.
        portion: what this rank holds.
        sees: whether this rank sees the folder of the checkpoints.
    """

    def __init__(self, world: World, layout: Layout, elementwise: bool, portion: Portion | None, sees: bool) -> None:
        self._packing, self._elementwise = Packing(layout), elementwise
        mine = None if portion is None else {name: size for name, (size, _) in self._types(portion).items()}
        shared = portion is not None and portion.shared
        told = world.gather_all((mine, shared, sees), "comparing what the ranks hold")
        self.sees: list[bool] = [seen for _, _, seen in told]
        """Of each rank, whether it sees the folder."""
        sizes = [held or {} for held, _, _ in told]
        shared = told[0][1]
        before = sizes[:0] if shared else sizes[: world.rank]
        self._starts = {name: sum(held.get(name, 0) for held in before) for name in mine or {}}
        whole = sizes[:1] if shared else sizes
        self.totals = {name: sum(held.get(name, 0) for held in whole) for held in whole for name in held}
        """Elements of each vector, without padding."""
        writers = [rank for rank, (held, _, seen) in enumerate(told) if held is not None and (seen or not shared)]
        self.parts: dict[int, tuple[int, int]] = {
            rank: (index, len(writers)) if shared else (0, 1) for index, rank in enumerate(writers)
        }
        """By rank that saves: which part of what it holds, of how many."""

    def of(self, portion: Portion) -> list[Holding]:
        """This rank's, now."""
        held = []
        for name, (size, dtype) in self._types(portion).items():
            start = self._starts[name]
            slot = name.removeprefix(OPTIMIZER)

            def load(name: str = name, slot: str = slot) -> np.ndarray:
                return portion.parameters if name == PARAMETERS else portion.optimizer.slot(slot)

            padded = name == PARAMETERS or self._elementwise
            packing = self._packing if padded else None
            held.append(Holding(name, dtype, start, start + size, load, packing, portion.part.start))
        return held

    def _types(self, portion: Portion) -> dict[str, tuple[int, np.dtype]]:
        """Elements without padding, and dtype, of what this rank holds of each vector."""
        own = self._packing.packed(portion.part.stop) - self._packing.packed(portion.part.start)
        types = {PARAMETERS: (own, portion.parameters.dtype)}
        for slot, (size, dtype) in portion.optimizer.slot_types.items():
            types[OPTIMIZER + slot] = (own if self._elementwise else size, dtype)
        return types
