"""The walk over a slice in blocks that fit the cache, which all numpy optimizers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from mpitrain.parameters.layout import aligned_zeros

BLOCK = 131072
"""Elements that are updated at a time: few enough for the cache, enough to hide the cost of calling numpy."""

GIVEN_BLOCK = 32768
"""The same where the gradient is computed block by block, from several vectors."""


class Blocks(Protocol):
    """A vector that is computed when and where it is needed, so that it is still in the cache then."""

    def __call__(self, start: int, stop: int) -> np.ndarray:
        """Elements ``start`` to ``stop``; only to be read, valid until the next call."""
        ...


class Blocked(ABC):
    """A ``SliceOptimizer`` in numpy: state vectors, scratch for one block, and what all of Keras's classes can do.

    The subclasses do their operations in the order of Keras's classes and in the vector's dtype, so that an element
    comes out the same but for the rounding of factors that are computed once for an update.

    Args:
        size: elements of the slice.
        dtype: of its vectors.
        slots: name of each state vector as Keras calls it → its value at the start.
        weight_decay: share of each parameter, times the learning rate, that goes before the update.
        clipvalue: bound on the absolute value of a gradient's elements.
    """

    SCRATCHES = 2
    """Vectors of a block's length that the update needs, besides the one for the gradient."""

    LINEAR = False
    """Whether a factor on the gradient is one on the learning rate, so that it costs no pass of its own."""

    def __init__(
        self,
        size: int,
        dtype: np.dtype,
        slots: dict[str, float],
        *,
        weight_decay: float | None = None,
        clipvalue: float | None = None,
    ) -> None:
        self.iterations = 0
        self.size = size
        self._cast = dtype.type
        self._state = {name: aligned_zeros(size, dtype) for name in slots}
        for name, value in slots.items():
            if value:
                self._state[name][:] = value
        self._scratch = [aligned_zeros(min(size, BLOCK), dtype) for _ in range(self.SCRATCHES + 1)]
        self._decay = weight_decay
        self._clip = clipvalue if clipvalue and clipvalue > 0 else None

    @property
    def slots(self) -> dict[str, np.ndarray]:
        """The state vectors themselves, shape ``(size,)`` each."""
        return self._state

    @property
    def slot_types(self) -> dict[str, tuple[int, np.dtype]]:
        """See ``SliceOptimizer.slot_types``."""
        return {name: (vector.size, vector.dtype) for name, vector in self._state.items()}

    def slot(self, name: str) -> np.ndarray:
        """The state vector itself."""
        return self._state[name]

    def set_slot(self, name: str, values: np.ndarray) -> None:
        """Copy ``values`` into a state vector."""
        self._state[name][...] = values

    def apply(
        self,
        parameters: np.ndarray,
        gradient: np.ndarray | Blocks,
        out: np.ndarray,
        learning_rate: float,
        scale: float = 1.0,
    ) -> None:
        """See ``SliceOptimizer.apply``."""
        self.iterations += 1
        folded = self.LINEAR and not self._clip
        self._begin(learning_rate * scale if folded else learning_rate)
        factor = self._cast(1.0 if folded else scale)
        block = BLOCK if isinstance(gradient, np.ndarray) else GIVEN_BLOCK
        state = tuple(self._state.values())
        for start in range(0, self.size, block):
            stop = min(start + block, self.size)
            g = gradient[start:stop] if isinstance(gradient, np.ndarray) else gradient(start, stop)
            own, *scratch = (s[: stop - start] for s in self._scratch)
            new, old = out[start:stop], parameters[start:stop]
            if factor != 1:
                g = np.multiply(g, factor, own)
            if self._clip:
                g = np.clip(g, -self._cast(self._clip), self._cast(self._clip), own)
            if self._decay:
                np.multiply(old, self._cast(self._decay), scratch[0])
                np.multiply(scratch[0], self._cast(learning_rate), scratch[0])
                old = np.subtract(old, scratch[0], new)
            self._update(g, old, new, [s[start:stop] for s in state], scratch)

    def _begin(self, learning_rate: float) -> None:
        """Prepare the factors of this update."""
        self._rate = self._cast(learning_rate)

    @abstractmethod
    def _update(
        self,
        gradient: np.ndarray,
        old: np.ndarray,
        new: np.ndarray,
        state: Sequence[np.ndarray],
        scratch: Sequence[np.ndarray],
    ) -> None:
        """Update one block: ``new`` (which may be ``old``) and ``state`` change, ``gradient`` does not."""
