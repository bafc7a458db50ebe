"""Optimizers on a slice of the parameter vector: how they are named and made.

Nothing here imports Keras; what numpy does not cover is made by ``keras_optimizers`` when it is asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from mpitrain.errors import InputError
from mpitrain.parameters.blocked import Blocked, Blocks
from mpitrain.parameters.layout import Layout
from mpitrain.parameters.numpy_optimizers import NUMPY

ELEMENTWISE = frozenset(("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Lion", "Ftrl"))
"""Keras classes whose update of an element depends on that element alone."""

BY_VARIABLE = frozenset(("Adafactor", "Lamb", "Muon"))
"""Keras classes that take norms or products within a variable."""

OPTIMIZERS = tuple(sorted(ELEMENTWISE | BY_VARIABLE))
"""Every optimizer that can be named."""


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
    return NUMPY[spec.name](stop - start, layout.dtype, **config)


def needs_keras(spec: OptimizerSpec) -> bool:
    """Whether Keras must compute the update, because numpy's optimizers here do not cover it."""
    kind = NUMPY.get(spec.name)
    return kind is None or not spec.config.keys() - {"learning_rate"} <= _arguments(kind)


def _arguments(kind: type[Blocked]) -> set[str]:
    """What a numpy optimizer can be given by name; each class passes on to its base what it does not know."""
    made = (vars(c).get("__init__") for c in kind.__mro__)
    return {name for function in made for name in getattr(function, "__kwdefaults__", None) or ()}


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
