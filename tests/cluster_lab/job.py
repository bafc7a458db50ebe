"""``python -m tests.cluster_lab.job OPTIONS``: a whole training from the command line, with a step in plain numpy.

``FAULT="RANK KIND STEP"`` in the environment makes a rank fail in that step of its own. Of the kinds, ``disk`` alone
lets the rank go on: with a disk that answers after a second.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from mpitrain.cluster.launcher import read_launch
from mpitrain.parameters.step import Batch, OnReady, StepResult
from tests.support import numpy_job

SECONDS = 0.05
"""The time of one step."""


class Step(numpy_job.PixelStep):
    def __init__(self) -> None:
        super().__init__(SECONDS)
        rank, self._kind, at = os.environ.get("FAULT", "-1 none 0").split()
        self._at = int(at) if int(rank) == read_launch().rank else -1
        if self._kind == "diverge" and self._at >= 0:
            self.poison = {self._at}

    def run(self, parameters: np.ndarray, batch: Batch, on_ready: OnReady | None = None) -> StepResult:
        if self.runs == self._at:
            _suffer(self._kind)
        return super().run(parameters, batch, on_ready)


def _suffer(kind: str) -> None:
    if kind == "raise":
        raise ValueError("the model has a defect")
    if kind == "memory":
        raise MemoryError
    if kind == "sleep":
        time.sleep(1000)
    if kind == "disk":
        synced = os.fsync
        os.fsync = lambda descriptor: (time.sleep(1.0), synced(descriptor))[1]
    if kind in ("kill", "stop"):
        os.kill(os.getpid(), getattr(signal, f"SIG{kind.upper()}"))


if __name__ == "__main__":
    sys.exit(numpy_job.main(Step, sys.argv[1:]))
