"""Cutting the parameter vector into one shard for each server."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from mpitrain.errors import InputError
from mpitrain.parameters.layout import ALIGNMENT, Layout


def cut(layout: Layout, servers: int, elementwise: bool) -> list[slice]:
    """One contiguous slice for each server, as equal as borders allow.

    Args:
        layout: of the vector.
        servers: number of shards.
        elementwise: whether the optimizer may be cut anywhere (then on 64-byte borders, through big variables); else
            at the borders of variables.

    Raises:
        InputError: where a shard would be empty.
    """
    if elementwise:
        step = ALIGNMENT // layout.dtype.itemsize
        blocks = -(-layout.size // step)
        borders = [min(blocks * k // servers * step, layout.size) for k in range(servers + 1)]
    else:
        edges = [entry.offset for entry in layout.entries] + [layout.size]
        ideal = [layout.size * k / servers for k in range(servers + 1)]
        borders = [edges[int(np.abs(np.subtract(edges, place)).argmin())] for place in ideal]
    if any(low >= high for low, high in pairwise(borders)):
        limit = "" if elementwise else " at the borders of variables, as this optimizer needs it"
        raise InputError(
            f"--servers {servers} is more than the model's parameters can be shared among{limit}: use fewer"
        )
    return [slice(low, high) for low, high in pairwise(borders)]


def balance(shards: Sequence[slice], layout: Layout, elementwise: bool) -> str:
    """How evenly the parameters lie on the servers, for people."""
    sizes = [(s.stop - s.start) * layout.dtype.itemsize for s in shards]
    over = 100 * (max(sizes) * len(sizes) / sum(sizes) - 1)
    where = "anywhere" if elementwise else "between variables, as this optimizer needs it"
    return (
        f"{len(sizes)} shards of {', '.join(f'{size:,}' for size in sizes)} bytes, cut {where}; "
        f"the largest is {over:.1f} % over an equal share"
    )
