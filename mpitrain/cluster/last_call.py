"""A word at the end of a process that an MPI library ends by itself, from within ``MPI_Init``.

MPICH prints its own page there and calls ``exit``. What the C library is to call then must not be Python, which may be
gone by that time: it is ``printf``, of a text that is empty outside of the block.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_LONGEST = 4096


@cache
def _text() -> int:
    """The address of the text that is printed at the end; its memory outlives the interpreter."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    address = int(library.malloc(ctypes.c_size_t(_LONGEST)))
    ctypes.memset(address, 0, _LONGEST)
    library.__cxa_atexit(library.printf, ctypes.c_void_p(address), None)
    return address


@contextmanager
def saying(text: str) -> Iterator[None]:
    """Print ``text`` as an error if ``exit`` in C ends the process inside the block."""
    line = f"mpitrain: error: {text}\n".replace("%", "%%").encode()[: _LONGEST - 1]
    ctypes.memmove(_text(), line, len(line))
    try:
        yield
    finally:
        ctypes.memset(_text(), 0, _LONGEST)
