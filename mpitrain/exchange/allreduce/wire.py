"""How elements look on the wire: as they are, or narrowed to 16 bits.

Sums are made in the vector's own type in any case. Who owns a slice takes its own narrowed result too, so that every
rank has the same bits.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

NARROW = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


class WireOverflowError(Exception):
    """A sum had an element too large for the wire's type; every rank raises it together, and nothing was updated."""


class Wire:
    """Turns elements into what travels.

    Args:
        name: ``float32`` for elements as they are, or a key of ``NARROW``.
        dtype: of the vectors.
    """

    def __init__(self, name: str, dtype: np.dtype) -> None:
        self.name, self.narrow = name, name in NARROW
        self.dtype = NARROW.get(name, dtype)

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        """Narrow ``values`` into ``out`` of ``dtype``, to nearest even; what is too large becomes infinite."""
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(out, values, casting="unsafe")

    def decode(self, codes: np.ndarray, out: np.ndarray) -> None:
        """Undo :meth:`encode`, exactly, into ``out``."""
        np.copyto(out, codes, casting="unsafe")

    def bare(self, codes: np.ndarray) -> np.ndarray:
        """The same memory in a type that MPI knows."""
        return codes.view(np.uint16) if self.narrow else codes


def has_overflowed(values: np.ndarray) -> bool:
    """Whether any of the sums ``values`` is not finite: sums of finite gradients become so on the wire alone."""
    return bool(values.size) and not np.isfinite(max(values.max(), -values.min()))
