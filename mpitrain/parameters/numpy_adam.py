"""Keras's Adam and its kin in numpy: arguments, defaults and order of operations are those of the Keras class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpitrain.parameters.blocked import Blocked

Arrays = Sequence[np.ndarray]


class Adam(Blocked):
    """Adam in twelve passes over a block, thirteen with a scale; AMSGrad with one more.

    Sources: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2014 (the form before section 2.1: epsilon
    beside the uncorrected root); Reddi et al., On the Convergence of Adam and Beyond, 2018.
    """

    def __init__(
        self,
        size: int,
        dtype: np.dtype,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **common: Any,
    ) -> None:
        slots = ("momentum", "velocity", "velocity_hat") if amsgrad else ("momentum", "velocity")
        super().__init__(size, dtype, dict.fromkeys(slots, 0.0), **common)
        self._betas = beta_1, beta_2
        self._new_m, self._new_v = self._cast(1 - beta_1), self._cast(1 - beta_2)
        self._epsilon = self._cast(epsilon)

    def _begin(self, learning_rate: float) -> None:
        beta_1, beta_2 = self._betas
        correction = math.sqrt(1 - beta_2**self.iterations) / (1 - beta_1**self.iterations)
        self._alpha = self._cast(learning_rate * correction)

    def _update(self, gradient: np.ndarray, old: np.ndarray, new: np.ndarray, state: Arrays, scratch: Arrays) -> None:
        m, v, *hat = state
        s, t = scratch
        _approach(m, gradient, self._new_m, s)
        np.multiply(gradient, gradient, t)
        _approach(v, t, self._new_v, s)
        if hat:
            v = np.maximum(hat[0], v, out=hat[0])
        np.sqrt(v, s)
        np.add(s, self._epsilon, s)
        np.multiply(m, self._alpha, t)
        np.divide(t, s, t)
        np.subtract(old, t, new)


class AdamW(Adam):
    """Adam with decoupled weight decay.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019.
    """

    def __init__(self, size: int, dtype: np.dtype, *, weight_decay: float = 0.004, **others: Any) -> None:
        super().__init__(size, dtype, weight_decay=weight_decay, **others)


class Nadam(Blocked):
    """Adam with Nesterov's momentum, whose weight rises over the updates.

    Source: Dozat, Incorporating Nesterov Momentum into Adam, 2016.
    """

    def __init__(
        self,
        size: int,
        dtype: np.dtype,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **common: Any,
    ) -> None:
        super().__init__(size, dtype, {"momentum": 0.0, "velocity": 0.0}, **common)
        self._betas = beta_1, beta_2
        self._epsilon = self._cast(epsilon)
        self._product = 0, 1.0
        """Of the momentum's weights, and over how many updates."""

    def _begin(self, learning_rate: float) -> None:
        super()._begin(learning_rate)
        beta_1, beta_2 = self._betas
        weight, following = (beta_1 * (1 - 0.5 * 0.96 ** (self.iterations + k)) for k in (0, 1))
        count, product = self._product
        if count != self.iterations - 1:  # another number of updates was set
            steps = np.arange(1, self.iterations, dtype=np.float64)
            product = float(np.prod(beta_1 * (1 - 0.5 * 0.96**steps)))
        product *= weight
        self._product = self.iterations, product
        cast = self._cast
        self._of_m, self._under_m = cast(following), cast(1 - product * following)
        self._of_g, self._under_g = cast(1 - weight), cast(1 - product)
        self._under_v = cast(1 - beta_2**self.iterations)
        self._new_m, self._new_v = cast(1) - cast(beta_1), cast(1) - cast(beta_2)

    def _update(self, gradient: np.ndarray, old: np.ndarray, new: np.ndarray, state: Arrays, scratch: Arrays) -> None:
        m, v = state
        s, t = scratch
        _approach(m, gradient, self._new_m, s)
        np.multiply(gradient, gradient, t)
        _approach(v, t, self._new_v, s)
        np.multiply(m, self._of_m, s)
        np.divide(s, self._under_m, s)
        np.multiply(gradient, self._of_g, t)
        np.divide(t, self._under_g, t)
        np.add(s, t, s)
        np.multiply(s, self._rate, s)
        np.divide(v, self._under_v, t)
        np.sqrt(t, t)
        np.add(t, self._epsilon, t)
        np.divide(s, t, s)
        np.subtract(old, s, new)


class Adamax(Blocked):
    """Adam with the largest of the decayed gradients in place of the root of their mean square.

    Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2014, section 7.
    """

    def __init__(
        self,
        size: int,
        dtype: np.dtype,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **common: Any,
    ) -> None:
        super().__init__(size, dtype, {"momentum": 0.0, "norm": 0.0}, **common)
        self._beta_1 = beta_1
        self._new_m, self._beta_2 = self._cast(1 - beta_1), self._cast(beta_2)
        self._epsilon = self._cast(epsilon)

    def _begin(self, learning_rate: float) -> None:
        super()._begin(learning_rate)
        self._under = self._cast(1 - self._beta_1**self.iterations)

    def _update(self, gradient: np.ndarray, old: np.ndarray, new: np.ndarray, state: Arrays, scratch: Arrays) -> None:
        m, u = state
        s, t = scratch
        _approach(m, gradient, self._new_m, s)
        np.multiply(u, self._beta_2, u)
        np.maximum(u, np.abs(gradient, s), out=u)
        np.add(u, self._epsilon, s)
        np.multiply(s, self._under, s)
        np.multiply(m, self._rate, t)
        np.divide(t, s, t)
        np.subtract(old, t, new)


def _approach(average: np.ndarray, value: np.ndarray, share: np.generic, scratch: np.ndarray) -> None:
    """``average += (value - average) * share``."""
    np.subtract(value, average, scratch)
    np.multiply(scratch, share, scratch)
    np.add(average, scratch, average)
