"""Optimizers on a slice of the parameter vector: SGD and Adam in blocked numpy, and how every other one is named.

Nothing here imports Keras; what numpy does not cover is made by ``keras_optimizers`` when it is asked for.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from mpitrain.errors import InputError
from mpitrain.parameters.layout import Layout, aligned_zeros

ELEMENTWISE = frozenset(("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Lion", "Ftrl"))
"""Keras classes whose update of an element depends on that element alone."""

BY_VARIABLE = frozenset(("Adafactor", "Lamb", "Muon"))
"""Keras classes that take norms or products within a variable."""

OPTIMIZERS = tuple(sorted(ELEMENTWISE | BY_VARIABLE))
"""Every optimizer that can be named."""

BLOCK = 131072
"""Elements that are updated at a time: few enough for the cache, enough to hide the cost of calling numpy."""

GIVEN_BLOCK = 32768
"""The same where the gradient is computed block by block, from several vectors."""


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer as plain data, equal on every rank: a Keras class and the arguments that are not its defaults.

    Args:
        name: one of ``OPTIMIZERS``, in any case.
        config: keyword arguments of the Keras class, JSON-able.

    Raises:
        InputError: the name is unknown, or an argument cannot be honoured when parameters are spread over ranks.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", known_name(self.name))
        config = {k: v for k, v in self.config.items() if not _says_nothing(self.name, k, v)}
        _refuse_arguments(self.name, config)
        object.__setattr__(self, "config", config)

    @property
    def learning_rate(self) -> float | None:
        """The learning rate in ``config``, or None where Keras's default holds."""
        rate = self.config.get("learning_rate")
        return None if rate is None else float(rate)


class Blocks(Protocol):
    """A vector that is computed when and where it is needed, so that it is still in the cache then."""

    def __call__(self, start: int, stop: int) -> np.ndarray:
        """Elements ``start`` to ``stop``; only to be read, valid until the next call."""
        ...


class SliceOptimizer(Protocol):
    """One optimizer's state for a slice of the parameter vector."""

    iterations: int
    """Updates applied so far."""

    @property
    def slots(self) -> dict[str, np.ndarray]:
        """State vectors by the names that Keras gives them; write into them through ``set_slot``."""
        ...

    @property
    def slot_types(self) -> dict[str, tuple[int, np.dtype]]:
        """Elements and dtype of each state vector."""
        ...

    def slot(self, name: str) -> np.ndarray:
        """One of ``slots``, without making the others."""
        ...

    def set_slot(self, name: str, values: np.ndarray) -> None:
        """Replace a state vector."""
        ...

    def apply(
        self,
        parameters: np.ndarray,
        gradient: np.ndarray | Blocks,
        out: np.ndarray,
        learning_rate: float,
        scale: float = 1.0,
    ) -> None:
        """One update.

        Args:
            parameters: shape ``(stop - start,)``, the slice before the update.
            gradient: same shape, only read, or what gives it block by block; ``scale`` times it is what is applied.
            out: same shape, receives the new parameters; may be ``parameters`` itself.
            learning_rate: for this update.
            scale: a factor on the gradient, such as one over the sum of weights.
        """
        ...


def known_name(name: str) -> str:
    """The Keras class that ``name`` means, in whatever case; raises ``InputError`` with the nearest known name."""
    by_lower = {known.lower(): known for known in OPTIMIZERS}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.0)[0]
    raise InputError(f"There is no optimizer '{name}': did you mean '{near}'? Known are {', '.join(sorted(by_lower))}.")


def is_elementwise(spec: OptimizerSpec) -> bool:
    """Whether slices may be cut anywhere; otherwise they must lie on variable borders."""
    return spec.name in ELEMENTWISE and not spec.config.keys() & {"clipnorm", "global_clipnorm"}


def make_optimizer(spec: OptimizerSpec, layout: Layout, start: int = 0, stop: int | None = None) -> SliceOptimizer:
    """The optimizer for elements ``start`` to ``stop`` of vectors of ``layout``: in numpy where that is the same.

    Raises:
        InputError: the slice cuts through a variable, and this optimizer cannot be cut there.
    """
    stop = layout.size if stop is None else stop
    if needs_keras(spec):
        from mpitrain.parameters.keras_optimizers import KerasSliceOptimizer

        return KerasSliceOptimizer(spec, layout, start, stop)
    config = {k: v for k, v in spec.config.items() if k != "learning_rate"}
    kind = BlockedSGD if spec.name == "SGD" else BlockedAdam
    return kind(stop - start, layout.dtype, **config)


def needs_keras(spec: OptimizerSpec) -> bool:
    """Whether Keras must compute the update, because numpy's optimizers here do not cover it."""
    covered = {"SGD": {"momentum", "nesterov"}, "Adam": {"beta_1", "beta_2", "epsilon"}}.get(spec.name)
    return covered is None or not spec.config.keys() - {"learning_rate"} <= covered


_NEUTRAL: dict[str, Any] = {
    "clipnorm": None,
    "global_clipnorm": None,
    "clipvalue": None,
    "use_ema": False,
    "ema_overwrite_frequency": None,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
    "weight_decay": None,
    "amsgrad": False,
    "nesterov": False,
}


def _says_nothing(name: str, argument: str, value: Any) -> bool:
    """Whether an argument of ``get_config`` is Keras's default, or has no effect."""
    if argument in ("name", "ema_momentum"):
        return True
    own_default = (argument == "weight_decay" and name in ("AdamW", "Muon")) or (
        argument == "nesterov" and name == "Muon"
    )
    return argument in _NEUTRAL and value == _NEUTRAL[argument] and not own_default


def _refuse_arguments(name: str, config: Mapping[str, Any]) -> None:
    """One sentence for each argument that Keras knows and that a slice cannot honour."""
    for argument in ("use_ema", "gradient_accumulation_steps", "loss_scale_factor"):
        if argument in config:
            raise InputError(
                f"{name} with {argument}={config[argument]!r} cannot be trained here: leave {argument} out."
            )
    if isinstance(config.get("learning_rate"), Mapping):
        raise InputError(
            f"The learning rate of {name} is a Keras schedule object: give a number, and let lr_schedule change it."
        )


class _Blocked:
    """What the numpy optimizers share: state vectors, scratch for one block, and the walk over blocks."""

    def __init__(self, size: int, dtype: np.dtype, slots: tuple[str, ...], scratches: int) -> None:
        self.iterations = 0
        self.size = size
        self._cast = dtype.type
        self._state = {name: aligned_zeros(size, dtype) for name in slots}
        self._scratch = [aligned_zeros(min(size, BLOCK), dtype) for _ in range(scratches)]

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

    def _blocks(self, gradient: np.ndarray | Blocks, *vectors: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        """The same block of the gradient, of each vector and of each scratch, one block after another."""
        block = BLOCK if isinstance(gradient, np.ndarray) else GIVEN_BLOCK
        for start in range(0, self.size, block):
            stop = min(start + block, self.size)
            given = gradient[start:stop] if isinstance(gradient, np.ndarray) else gradient(start, stop)
            yield (given, *[v[start:stop] for v in vectors], *[s[: stop - start] for s in self._scratch])


class BlockedSGD(_Blocked):
    """Keras's SGD, plain, with momentum, or with Nesterov's; two to five passes over a block."""

    def __init__(self, size: int, dtype: np.dtype, momentum: float = 0.0, nesterov: bool = False) -> None:
        super().__init__(size, dtype, ("momentum",) if momentum else (), 1)
        self.momentum = momentum
        self.nesterov = nesterov

    def apply(
        self,
        parameters: np.ndarray,
        gradient: np.ndarray | Blocks,
        out: np.ndarray,
        learning_rate: float,
        scale: float = 1.0,
    ) -> None:
        """See ``SliceOptimizer.apply``."""
        rate = self._cast(learning_rate * scale)
        mu = self._cast(self.momentum)
        if not self.momentum:
            for g, p, new, s in self._blocks(gradient, parameters, out):
                np.multiply(g, rate, s)
                np.subtract(p, s, new)
        else:
            for g, p, new, m, s in self._blocks(gradient, parameters, out, self._state["momentum"]):
                np.multiply(g, rate, s)
                np.multiply(m, mu, m)
                np.subtract(m, s, m)
                if self.nesterov:
                    np.subtract(p, s, new)
                    np.multiply(m, mu, s)
                    np.add(new, s, new)
                else:
                    np.add(p, m, new)
        self.iterations += 1


class BlockedAdam(_Blocked):
    """Keras's Adam in twelve passes over a block, thirteen with a scale.

    The order of operations is Keras's (``m += (g - m)(1 - b1)``, epsilon beside the uncorrected root), so that an
    element comes out the same but for the rounding of the step size.

    Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2014 (the form before section 2.1).
    """

    def __init__(
        self, size: int, dtype: np.dtype, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-7
    ) -> None:
        super().__init__(size, dtype, ("momentum", "velocity"), 2)
        self.betas = beta_1, beta_2
        self.epsilon = epsilon

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
        beta_1, beta_2 = self.betas
        correction = math.sqrt(1 - beta_2**self.iterations) / (1 - beta_1**self.iterations)
        alpha, factor = self._cast(learning_rate * correction), self._cast(scale)
        new_m, new_v, epsilon = self._cast(1 - beta_1), self._cast(1 - beta_2), self._cast(self.epsilon)
        state = self._state["momentum"], self._state["velocity"]
        for g, p, new, m, v, s, t in self._blocks(gradient, parameters, out, *state):
            if scale != 1.0:
                g = np.multiply(g, factor, t)
            np.subtract(g, m, s)
            np.multiply(s, new_m, s)
            np.add(m, s, m)
            np.multiply(g, g, s)
            np.subtract(s, v, s)
            np.multiply(s, new_v, s)
            np.add(v, s, v)
            np.sqrt(v, s)
            np.add(s, epsilon, s)
            np.multiply(m, alpha, t)
            np.divide(t, s, t)
            np.subtract(p, t, new)
