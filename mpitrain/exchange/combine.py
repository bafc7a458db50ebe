"""Combining gradients of several batches into the gradient of all their samples together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def coefficients(weights: Sequence[float], undivided: bool) -> tuple[list[float] | None, float]:
    """How to combine gradients with ``weights``: multiply each first (None: do not), then scale their sum.

    Means are weighted by what each was divided by: ``sum(g * w) / sum(w)``. Where all weights are equal the
    multiplication is left out, which saves a pass over every gradient. Gradients of summed losses (``undivided``) only
    add.

    Args:
        weights: one for each gradient; a weight of zero says that there is no gradient.
        undivided: whether the gradients are those of a sum over the batch.
    """
    total = sum(weights)
    if undivided or total == 0:
        return None, 1.0
    used = {w for w in weights if w}
    if len(used) == 1:
        return None, used.pop() / total
    return list(weights), 1.0 / total


def add_in_order(gradients: Sequence[np.ndarray], factors: Sequence[float] | None, out: np.ndarray) -> np.ndarray:
    """``sum(factor * gradient)`` in the order given, so that the same bits come out each time.

    Args:
        gradients: at least one, each of ``out``'s shape and dtype, read only.
        factors: one for each gradient, or None for plain addition.
        out: scratch for the sum.

    Returns:
        ``out``, or the only gradient itself where nothing needs to be computed.
    """
    if factors is None:
        if len(gradients) == 1:
            return gradients[0]
        np.add(gradients[0], gradients[1], out=out)
        for gradient in gradients[2:]:
            np.add(out, gradient, out=out)
        return out
    np.multiply(gradients[0], out.dtype.type(factors[0]), out=out)
    for gradient, factor in zip(gradients[1:], factors[1:], strict=True):
        out += gradient * out.dtype.type(factor)
    return out
