"""What one participant adds to a sum, element by element as it is asked for."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mpitrain.parameters.blocked import GIVEN_BLOCK, Blocks


class Term(Protocol):
    """One vector to be added, which may be computed when and where it is needed."""

    def lying(self, part: slice) -> np.ndarray | None:
        """``part`` of it where it lies ready and stays until the sum is made; None where it must be computed."""
        ...

    def write(self, part: slice, out: np.ndarray) -> None:
        """Put ``part`` of it into ``out``."""
        ...

    def add(self, part: slice, total: np.ndarray) -> None:
        """Add ``part`` of it to ``total``."""
        ...


class Scaled:
    """A rank's gradient, times its factor.

    Args:
        gradient: of the whole vector, only read; None where the rank has none, which then adds zeros.
        factor: of the gradient's type, or None for one.
        scratch: at least as long as any ``part`` asked for.
    """

    def __init__(self, gradient: np.ndarray | None, factor: np.generic | None, scratch: np.ndarray) -> None:
        self._gradient, self._factor, self._scratch = gradient, factor, scratch

    def lying(self, part: slice) -> np.ndarray | None:
        """See ``Term.lying``."""
        return None if self._gradient is None or self._factor is not None else self._gradient[part]

    def write(self, part: slice, out: np.ndarray) -> None:
        """See ``Term.write``."""
        if self._gradient is None:
            out[:] = 0
        elif self._factor is None:
            out[:] = self._gradient[part]
        else:
            np.multiply(self._gradient[part], self._factor, out)

    def add(self, part: slice, total: np.ndarray) -> None:
        """See ``Term.add``."""
        if self._gradient is None:
            return
        values = self._gradient[part]
        if self._factor is not None:
            values = np.multiply(values, self._factor, self._scratch[: values.size])
        np.add(total, values, total)


class Computed:
    """A vector that is computed block by block.

    Args:
        blocks: gives elements ``start`` to ``stop`` of the whole vector; None for zeros.
    """

    def __init__(self, blocks: Blocks | None) -> None:
        self._blocks = blocks

    def lying(self, part: slice) -> np.ndarray | None:
        """See ``Term.lying``."""
        return None

    def write(self, part: slice, out: np.ndarray) -> None:
        """See ``Term.write``."""
        if self._blocks is None:
            out[:] = 0
            return
        for low in range(part.start, part.stop, GIVEN_BLOCK):
            high = min(low + GIVEN_BLOCK, part.stop)
            out[low - part.start : high - part.start] = self._blocks(low, high)

    def add(self, part: slice, total: np.ndarray) -> None:
        """See ``Term.add``."""
        if self._blocks is None:
            return
        for low in range(part.start, part.stop, GIVEN_BLOCK):
            high = min(low + GIVEN_BLOCK, part.stop)
            into = total[low - part.start : high - part.start]
            np.add(into, self._blocks(low, high), into)


class BlockSum:
    """A sum of vectors in memory, in the order given, block by block as asked for.

    Args:
        sources: at least one, all of one length.
        factors: one for each, or None for plain addition.
        block: scratch for a block of the sum.
        term: scratch for a block of a product.
    """

    def __init__(
        self, sources: list[np.ndarray], factors: list[np.generic] | None, block: np.ndarray, term: np.ndarray
    ) -> None:
        self._sources, self._factors, self._block, self._term = sources, factors, block, term

    def __call__(self, start: int, stop: int) -> np.ndarray:
        """See ``Blocks``."""
        total, parts = self._block[: stop - start], [source[start:stop] for source in self._sources]
        if self._factors is None:
            if len(parts) == 1:
                return parts[0]
            np.add(parts[0], parts[1], total)
            for part in parts[2:]:
                np.add(total, part, total)
            return total
        np.multiply(parts[0], self._factors[0], total)
        for part, factor in zip(parts[1:], self._factors[1:], strict=True):
            np.add(total, np.multiply(part, factor, self._term[: stop - start]), total)
        return total
