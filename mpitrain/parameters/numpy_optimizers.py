"""Keras's optimizers that work element by element, in numpy.

Arguments, defaults and the order of operations are those of the Keras class of the same name. Nothing here imports
Keras.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpitrain.parameters.blocked import Blocked
from mpitrain.parameters.numpy_adam import Adam, Adamax, AdamW, Nadam

Arrays = Sequence[np.ndarray]


class SGD(Blocked):
    """Gradient descent, plain, with momentum, or with Nesterov's; two to five passes over a block."""

    SCRATCHES = 1
    LINEAR = True

    def __init__(
        self, size: int, dtype: np.dtype, *, momentum: float = 0.0, nesterov: bool = False, **common: Any
    ) -> None:
        super().__init__(size, dtype, {"momentum": 0.0} if momentum else {}, **common)
        self._mu = self._cast(momentum)
        self._nesterov = nesterov

    def _update(self, gradient: np.ndarray, old: np.ndarray, new: np.ndarray, state: Arrays, scratch: Arrays) -> None:
        (s,) = scratch
        np.multiply(gradient, self._rate, s)
        if not state:
            np.subtract(old, s, new)
            return
        (m,) = state
        np.multiply(m, self._mu, m)
        np.subtract(m, s, m)
        if self._nesterov:
            np.subtract(old, s, new)
            np.multiply(m, self._mu, s)
            np.add(new, s, new)
        else:
            np.add(old, m, new)


class Lion(Blocked):
    """The sign of a momentum that leans towards the newest gradient.

    Source: Chen et al., Symbolic Discovery of Optimization Algorithms, 2023.
    """

    def __init__(self, size: int, dtype: np.dtype, *, beta_1: float = 0.9, beta_2: float = 0.99, **common: Any) -> None:
        super().__init__(size, dtype, {"momentum": 0.0}, **common)
        self._beta_1, self._beta_2 = self._cast(beta_1), self._cast(beta_2)
        self._new_1, self._new_2 = self._cast(1) - self._beta_1, self._cast(1) - self._beta_2

    def _update(self, gradient: np.ndarray, old: np.ndarray, new: np.ndarray, state: Arrays, scratch: Arrays) -> None:
        (m,) = state
        s, t = scratch
        np.multiply(m, self._beta_1, s)
        np.multiply(gradient, self._new_1, t)
        np.add(s, t, s)
        np.sign(s, s)
        np.multiply(s, self._rate, s)
        np.subtract(old, s, new)
        np.multiply(m, self._beta_2, m)
        np.multiply(gradient, self._new_2, t)
        np.add(m, t, m)


class RMSprop(Blocked):
    """Steps divided by the root of the gradient's mean square, or, centered, of its variance.

    Sources: Hinton, Neural Networks for Machine Learning, lecture 6e, 2012; centered: Graves, Generating Sequences
    With Recurrent Neural Networks, 2013.
    """

    def __init__(
        self,
        size: int,
        dtype: np.dtype,
        *,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **common: Any,
    ) -> None:
        names = {"velocity": True, "momentum": momentum > 0, "average_gradient": centered}
        super().__init__(size, dtype, {name: 0.0 for name, used in names.items() if used}, **common)
        self._rho, self._new = self._cast(rho), self._cast(1 - rho)
        self._mu = self._cast(momentum)
        self._epsilon = self._cast(epsilon)
        self._centered = centered

    def _update(self, gradient: np.ndarray, old: np.ndarray, new: np.ndarray, state: Arrays, scratch: Arrays) -> None:
        v, *others = state
        s, t = scratch
        np.multiply(gradient, gradient, t)
        _blend(v, t, self._rho, self._new)
        denominator = v
        if self._centered:
            average = others[-1]
            np.copyto(t, gradient)
            _blend(average, t, self._rho, self._new)
            denominator = np.subtract(v, np.multiply(average, average, s), s)
        np.add(denominator, self._epsilon, s)
        np.sqrt(s, s)
        np.multiply(gradient, self._rate, t)
        np.divide(t, s, t)
        if self._mu > 0:
            momentum = others[0]
            np.multiply(momentum, self._mu, momentum)
            t = np.add(momentum, t, momentum)
        np.subtract(old, t, new)


class Adagrad(Blocked):
    """Steps divided by the root of the sum of all squared gradients.

    Source: Duchi et al., Adaptive Subgradient Methods for Online Learning and Stochastic Optimization, 2011.
    """

    def __init__(
        self,
        size: int,
        dtype: np.dtype,
        *,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **common: Any,
    ) -> None:
        super().__init__(size, dtype, {"accumulator": initial_accumulator_value}, **common)
        self._epsilon = self._cast(epsilon)

    def _update(self, gradient: np.ndarray, old: np.ndarray, new: np.ndarray, state: Arrays, scratch: Arrays) -> None:
        (sum_of_squares,) = state
        s, t = scratch
        np.multiply(gradient, gradient, s)
        np.add(sum_of_squares, s, sum_of_squares)
        np.add(sum_of_squares, self._epsilon, s)
        np.sqrt(s, s)
        np.multiply(gradient, self._rate, t)
        np.divide(t, s, t)
        np.subtract(old, t, new)


class Adadelta(Blocked):
    """Steps as large as earlier steps were in the mean square, against the gradient's.

    Source: Zeiler, ADADELTA: An Adaptive Learning Rate Method, 2012.
    """

    def __init__(self, size: int, dtype: np.dtype, *, rho: float = 0.95, epsilon: float = 1e-7, **common: Any) -> None:
        super().__init__(size, dtype, {"accumulated_grad": 0.0, "accumulated_delta_var": 0.0}, **common)
        self._rho, self._new = self._cast(rho), self._cast(1 - rho)
        self._epsilon = self._cast(epsilon)

    def _update(self, gradient: np.ndarray, old: np.ndarray, new: np.ndarray, state: Arrays, scratch: Arrays) -> None:
        squares, steps = state
        s, t = scratch
        np.multiply(gradient, gradient, t)
        _blend(squares, t, self._rho, self._new)
        np.sqrt(np.add(steps, self._epsilon, s), s)
        np.multiply(s, gradient, s)
        np.sqrt(np.add(squares, self._epsilon, t), t)
        np.divide(s, t, s)
        np.multiply(s, s, t)
        _blend(steps, t, self._rho, self._new)
        np.multiply(s, self._rate, s)
        np.subtract(old, s, new)


NUMPY: dict[str, type[Blocked]] = {
    kind.__name__: kind for kind in (SGD, Adam, AdamW, Nadam, Adamax, Lion, RMSprop, Adagrad, Adadelta)
}
"""By the name of the Keras class."""


def _blend(average: np.ndarray, value: np.ndarray, kept: np.generic, share: np.generic) -> None:
    """``average = kept * average + share * value``; overwrites ``value``."""
    np.multiply(average, kept, average)
    np.multiply(value, share, value)
    np.add(average, value, average)
