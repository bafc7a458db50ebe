"""A worker made slow on purpose: to see what a straggler costs under each policy."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import numpy as np

from mpitrain.errors import InputError


@dataclass(frozen=True)
class Delay:
    """Sleep before some of a rank's steps.

    Args:
        rank: that is delayed.
        seconds: for how long.
        probability: of a delay, for each step.
    """

    rank: int
    seconds: float
    probability: float = 1.0

    @classmethod
    def of(cls, text: str) -> Delay:
        """From ``RANK:MILLISECONDS`` or ``RANK:MILLISECONDS:PROBABILITY``.

        Raises:
            InputError: where it is neither.
        """
        match = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,6}(?:\.[0-9]+)?)(?::([01](?:\.[0-9]+)?))?", text)
        probability = float(match[3] or 1) if match else 2.0
        if match is None or probability > 1:
            raise InputError(
                f"--inject-delay is {text!r} but must be RANK:MILLISECONDS or "
                "RANK:MILLISECONDS:PROBABILITY, as in 2:50:0.1"
            )
        return cls(int(match[1]), float(match[2]) / 1000, probability)

    def check(self, workers: tuple[int, ...]) -> None:
        """Refuse to delay a rank that computes no steps.

        Raises:
            InputError: where it is no worker.
        """
        if self.rank not in workers:
            told = ", ".join(map(str, workers))
            raise InputError(f"--inject-delay names rank {self.rank} but must name a worker, which are ranks {told}")


class Sleeper:
    """Does what a :class:`Delay` says, on the rank that it names.

    Args:
        delay: None for no delay.
        rank: this one.
        seed: of the chance.
    """

    def __init__(self, delay: Delay | None, rank: int, seed: int) -> None:
        self._delay = delay if delay is not None and delay.rank == rank else None
        self._random = np.random.default_rng((seed, rank))

    def __call__(self) -> None:
        """Before a step."""
        if self._delay is not None and self._random.random() < self._delay.probability:
            time.sleep(self._delay.seconds)
