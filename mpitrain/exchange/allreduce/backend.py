"""What every way of summing a vector over all ranks offers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from mpitrain.parameters.blocked import Blocks
from mpitrain.parameters.layout import ALIGNMENT


class Backend(Protocol):
    """Sums one vector over all ranks, in two halves: between them the ranks learn each other's weights.

    The order of addition is fixed for a back end and a world, so that runs repeat bit for bit, and every rank gets the
    same bits.
    """

    name: str

    @property
    def sent(self) -> int:
        """Bytes of vector data that this rank has sent, or written into shared memory, since the last sum began."""
        ...

    def put(self, gradient: np.ndarray) -> None:
        """Take this rank's vector in.

        Args:
            gradient: only read, and valid until :meth:`sum` has returned; empty where this rank has none.
        """
        ...

    def sum(self, used: Sequence[bool], factors: Sequence[float] | None) -> np.ndarray:
        """The sum over the ranks that are ``used`` of their vectors, each times its factor.

        Args:
            used: for each rank, whether it has a vector to add; at least one has.
            factors: for each rank, or None for plain addition.

        Returns:
            Shape ``(layout.size,)``, only to be read, valid until the next :meth:`put`.
        """
        ...

    def close(self) -> None:
        """Give back what is held; every rank must call it."""
        ...


class OwningBackend(Backend, Protocol):
    """A back end in which each rank owns a slice, can sum that alone, and can hand its new parameters to all.

    With it the optimizer runs once for each element (ZeRO stage 1; Rajbhandari et al., SC 2020).
    """

    own: slice
    """This rank's; the slices of all ranks, in rank order, are the vector."""

    def sum_own(self, used: Sequence[bool], factors: Sequence[float] | None) -> Blocks:
        """Like :meth:`sum`, for this rank's slice, block by block as asked for."""
        ...

    def publish(self, parameters: np.ndarray) -> None:
        """Return when every rank's slice of ``parameters``, each new on its owner, is whole on this rank."""
        ...

    def buffers(self) -> tuple[np.ndarray, np.ndarray]:
        """Two vectors for parameters, that one can be read while the other is written; one, where nobody else reads."""
        ...


def own_slices(size: int, ranks: int, itemsize: int) -> list[slice]:
    """One contiguous slice for each rank, equal to within ``ALIGNMENT`` bytes, cut on such borders; some may be empty.

    Args:
        size: elements of the vector.
        ranks: number of slices.
        itemsize: bytes of an element.
    """
    step = ALIGNMENT // itemsize
    blocks = -(-size // step)
    borders = [min(blocks * r // ranks * step, size) for r in range(ranks + 1)]
    return [slice(low, high) for low, high in pairwise(borders)]
