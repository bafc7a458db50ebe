"""What a server makes of the gradients of an update before the optimizer sees them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpitrain.exchange.combine import add_in_order, coefficients
from mpitrain.exchange.policy import Policy
from mpitrain.parameters.blocked import GIVEN_BLOCK as BLOCK
from mpitrain.parameters.layout import aligned_zeros

_MEMORY, _TINY = 0.95, 1e-7  # of the mean square of the gradients, as in the paper's experiments


class Gathering:
    """Adds gradients up, corrected as the policy says, until they make an update.

    Args:
        size: elements of the shard.
        dtype: of the gradients.
        policy: of the run.
        undivided: whether gradients are added and not averaged.
    """

    def __init__(self, size: int, dtype: np.dtype, policy: Policy, undivided: bool) -> None:
        self._policy, self._undivided = policy, undivided
        self._sum = aligned_zeros(size, dtype)
        self._weight = 0.0
        self._begun = False
        compensates = policy.compensation is not None
        self._fixed = aligned_zeros(size if compensates else 0, dtype)
        self._square = aligned_zeros(size if compensates and policy.adaptive else 0, dtype)
        self._scratch = aligned_zeros(min(size, BLOCK), dtype)

    @property
    def kept(self) -> dict[str, np.ndarray]:
        """What outlasts an update, by name."""
        return {"square": self._square} if self._square.size else {}

    def take(
        self, gradients: Sequence[np.ndarray], weights: Sequence[float], staleness: Sequence[int], step: bool
    ) -> tuple[np.ndarray, float] | None:
        """Take up gradients, in the order given.

        Args:
            gradients: shape ``(size,)`` each, only read; those of the last call are used until the next one.
            weights: what each is a mean over.
            staleness: of each, in versions.
            step: whether they complete an update.

        Returns:
            With ``step`` the gradient of the update and a factor that it is yet to be multiplied by.
        """
        if step and not self._begun and not self._policy.damping:
            factors, scale = coefficients(weights, self._undivided)
            return add_in_order(gradients, factors, self._sum), scale
        for gradient, weight, age in zip(gradients, weights, staleness, strict=True):
            factor = 1.0 if self._undivided else weight
            self._add(gradient, factor / max(1, age) if self._policy.damping else factor)
            self._weight += weight
        if not step:
            return None
        scale = 1.0 if self._undivided else 1.0 / self._weight
        self._weight, self._begun = 0.0, False
        return self._sum, scale

    def compensate(self, gradient: np.ndarray, now: np.ndarray, pulled: np.ndarray) -> np.ndarray:
        """An estimate of the gradient at ``now`` from that at ``pulled``: ``g + lambda g g (now - pulled)``.

        The product of a gradient with itself stands for the Hessian. Adaptive, lambda is divided by the root of a
        moving mean of the squares, element by element. Source: Zheng et al., "Asynchronous Stochastic Gradient Descent
        with Delay Compensation", ICML 2017, equations 10 and 14.

        Args:
            gradient: shape ``(size,)``, only read.
            now: the parameters that it will be applied to.
            pulled: the parameters that it was computed from.

        Returns:
            Valid until the next call.
        """
        kind = gradient.dtype.type
        factor = kind(self._policy.compensation)
        for low in range(0, gradient.size, BLOCK):
            part = slice(low, low + BLOCK)
            g, out = gradient[part], self._fixed[part]
            t = self._scratch[: g.size]
            np.multiply(g, g, t)
            if self._policy.adaptive:
                square = self._square[part]
                square *= kind(_MEMORY)
                square += np.multiply(t, kind(1 - _MEMORY), out)
                np.sqrt(np.add(square, kind(_TINY), out), out)
                np.divide(t, out, t)
            np.subtract(now[part], pulled[part], out)
            out *= t
            out *= factor
            out += g
        return self._fixed

    def _add(self, gradient: np.ndarray, factor: float) -> None:
        kind, begun, self._begun = gradient.dtype.type, self._begun, True
        for low in range(0, gradient.size, BLOCK):
            part = slice(low, low + BLOCK)
            total = self._sum[part]
            if not begun:
                np.multiply(gradient[part], kind(factor), total)
            else:
                total += np.multiply(gradient[part], kind(factor), self._scratch[: total.size])
