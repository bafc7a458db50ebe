"""The order in which an epoch hands out its samples."""

from __future__ import annotations

import numpy as np


class Order:
    """A permutation of the samples for each epoch, a function of (seed, epoch) alone.

    The ranks must agree on it, and a resumed run must find it again, perhaps under another numpy. What
    ``Generator.permutation`` gives may change between numpy versions; ``SeedSequence`` and a bit generator's
    raw stream may not (NEP 19). So the permutation is the sorting order of PCG64's raw 64-bit numbers.

    Args:
        samples: number of samples, the length of an epoch.
        seed: not negative.

    Source: O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for Random
    Number Generation", 2014.
    """

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self.seed = seed
        self._epoch = -1
        self._permutation = np.empty(0, np.intp)

    def indices(self, epoch: int, first: int, count: int) -> np.ndarray:
        """The samples at ``count`` places of ``epoch`` from ``first`` on: read-only intp ``(count,)``.

        Raises:
            IndexError: the places reach beyond the epoch.
        """
        if first < 0 or count < 0 or first + count > self.samples:
            raise IndexError(f"places {first} to {first + count} of an epoch of {self.samples} samples")
        if epoch != self._epoch:
            stream = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(epoch,)))
            # A stable sort, so that the order is defined even where two numbers are equal.
            self._permutation = np.argsort(stream.random_raw(self.samples), kind="stable")
            self._permutation.flags.writeable = False
            self._epoch = epoch
        return self._permutation[first : first + count]
