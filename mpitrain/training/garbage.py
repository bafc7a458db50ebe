"""Garbage collection that stays short while a run trains."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def short_collections() -> Iterator[None]:
    """Have Python's garbage collector pass over all objects that exist now, inside the block.

    TensorFlow and a traced model are so many objects that a full collection holds Python's lock for some tenths of a
    second. No thread can act in that time, and a launcher that ends the job kills after a quarter of a second.
    """
    ours = gc.get_freeze_count() == 0  # else the user's script has frozen its objects already, and keeps them so
    gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()
