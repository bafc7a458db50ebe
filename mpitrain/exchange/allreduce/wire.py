"""How elements look on the wire: as they are, or narrowed to 16 bits.

Sums are made in the vector's own type in any case. Who owns a slice takes its own narrowed result too, so that every
rank has the same bits.
"""

from __future__ import annotations

import numpy as np

NARROW = ("float16", "bfloat16")
"""Names of the types that are shorter than a gradient's."""


class WireOverflowError(Exception):
    """A sum had an element too large for the wire's type; every rank raises it together, and nothing was updated."""


class Wire:
    """Turns elements into what travels.

    Args:
        name: ``float32`` for elements as they are, or one of ``NARROW``.
        dtype: of the vectors.
    """

    def __init__(self, name: str, dtype: np.dtype) -> None:
        self.name, self.narrow = name, name in NARROW
        self.dtype = _narrow(name) if self.narrow else dtype
        self._halves = Halves() if name == "float16" and dtype == np.float32 else None

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        """Narrow ``values`` into ``out`` of ``dtype``, to nearest even; what is too large becomes infinite."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self._halves is not None:
                self._halves.encode(values, out.view(np.uint16))
            else:
                np.copyto(out, values, casting="unsafe")

    def decode(self, codes: np.ndarray, out: np.ndarray) -> None:
        """Undo :meth:`encode`, exactly, into ``out``."""
        if self._halves is not None:
            self._halves.decode(codes.view(np.uint16), out)
        else:
            np.copyto(out, codes, casting="unsafe")

    def bare(self, codes: np.ndarray) -> np.ndarray:
        """The same memory in a type that MPI knows."""
        return codes.view(np.uint16) if self.narrow else codes


def _narrow(name: str) -> np.dtype:
    if name == "float16":
        return np.dtype(np.float16)
    import ml_dtypes  # half a second of a core, which few need

    return np.dtype(ml_dtypes.bfloat16)


class Halves:
    """float32 to float16 and back by whole arrays: ten times faster than numpy's own conversion of single elements.

    Source of the encoding: Marat Dukhan's FP16 library, ``fp16_ieee_from_fp32_value``.
    """

    _BLOCK = 16384  # elements: what is computed of them stays in the cache
    _UP, _DOWN = np.float32(2.0**112), np.float32(2.0**-110)  # beyond what float16 can hold, and back

    def __init__(self) -> None:
        self._bits, self._more = (np.empty(self._BLOCK, np.uint32) for _ in range(2))
        self._base = np.empty(self._BLOCK, np.float32)
        self._values = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        """float32 ``values`` as the bits of float16, into uint16 ``out``."""
        for low in range(0, values.size, self._BLOCK):
            self._encode(values[low : low + self._BLOCK], out[low : low + self._BLOCK])

    def decode(self, codes: np.ndarray, out: np.ndarray) -> None:
        """The float32 values of uint16 ``codes``."""
        np.take(self._values, codes, out=out, mode="clip")

    def _encode(self, values: np.ndarray, out: np.ndarray) -> None:
        word = values.view(np.uint32)
        bits, more, base = (scratch[: values.size] for scratch in (self._bits, self._more, self._base))
        np.abs(values, base)
        np.multiply(base, self._UP, base)
        np.multiply(base, self._DOWN, base)
        # Adding a power of two of the right size rounds the value at the last bit that float16 has.
        np.left_shift(word, np.uint32(1), bits)
        np.bitwise_and(bits, np.uint32(0xFF000000), bits)
        np.maximum(bits, np.uint32(0x71000000), out=bits)
        np.right_shift(bits, np.uint32(1), bits)
        np.add(bits, np.uint32(0x07800000), bits)
        np.add(base, bits.view(np.float32), base)
        rounded = base.view(np.uint32)
        np.right_shift(rounded, np.uint32(13), bits)
        np.bitwise_and(bits, np.uint32(0x7C00), bits)
        np.bitwise_and(rounded, np.uint32(0x0FFF), more)
        np.add(bits, more, bits)
        np.right_shift(word, np.uint32(16), more)
        np.bitwise_and(more, np.uint32(0x8000), more)
        np.bitwise_or(bits, more, bits)
        np.copyto(out, bits, casting="unsafe")


def has_overflowed(values: np.ndarray) -> bool:
    """Whether any of the sums ``values`` is not finite: sums of finite gradients become so on the wire alone."""
    return bool(values.size) and not np.isfinite(max(values.max(), -values.min()))
