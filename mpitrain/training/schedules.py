"""The effective learning rate of each update."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mpitrain.config import RunConfig, check_schedule


@dataclass(frozen=True)
class LearningRate:
    """``rate(version)`` for the update that makes version ``version + 1``.

    Linear scaling with warm-up follows Goyal et al., "Accurate, Large Minibatch SGD", 2017; cosine decay Loshchilov and
    Hutter, "SGDR", ICLR 2017.

    Args:
        base: rate at full height, scaling included.
        warmup: updates until it is reached.
        kind: ``constant``, ``cosine`` or ``step``.
        every: updates between two steps.
        factor: of each step.
        total: updates in the run.
    """

    base: float
    warmup: int
    kind: str
    every: int
    factor: float
    total: int

    @classmethod
    def of(cls, config: RunConfig, base: float, sharing: int, total: int) -> LearningRate:
        """The schedule of a run whose updates are each shared by ``sharing`` workers."""
        scale = {"none": 1.0, "linear": float(sharing), "sqrt": math.sqrt(sharing)}[config.lr_scaling]
        return cls(base * scale, config.warmup_steps, *check_schedule(config.lr_schedule), total)

    def __call__(self, version: int) -> float:
        """The effective rate."""
        if version < self.warmup:
            return self.base * (version + 1) / self.warmup
        if self.kind == "cosine":
            done = (version - self.warmup) / max(1, self.total - self.warmup)
            return self.base * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        if self.kind == "step":
            return float(self.base * self.factor ** ((version - self.warmup) // self.every))
        return self.base
