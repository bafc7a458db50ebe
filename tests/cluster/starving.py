"""A training with a numpy step in which a rank runs out of memory, or worse.

mpirun -np 3 python -m tests.cluster.starving WHAT RANK [OPTIONS OF TRAIN]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np

from mpitrain.cluster import memory
from mpitrain.cluster.launcher import read_launch
from mpitrain.parameters.step import Batch, OnReady, StepResult
from tests.support import numpy_job

AT_STEP = 5


def take_too_much() -> None:
    np.ones(1 << 46)


def be_killed() -> None:
    """What the kernel does to the largest process: it counts, and kills."""
    (memory.PROC / "vmstat").write_text("nr_free_pages 12\noom_kill 4\n")
    os.kill(os.getpid(), signal.SIGKILL)


def eat() -> None:
    """Until the kernel kills this process."""
    eaten = []
    while True:
        eaten.append(np.ones(1 << 20))


def defect() -> NoReturn:
    raise ValueError("the model has a defect")


class Step(numpy_job.PixelStep):
    def __init__(self, what: str) -> None:
        super().__init__(float(os.environ.get("STEP_SECONDS", "0.01")))
        self._what = what

    def run(self, parameters: np.ndarray, batch: Batch, on_ready: OnReady | None = None) -> StepResult:
        if self.runs == AT_STEP and self._what:
            {"array": take_too_much, "killed": be_killed, "eat": eat, "defect": defect}[self._what]()
        return super().run(parameters, batch, on_ready)


def main(what: str, rank: int, arguments: list[str]) -> int:
    def make_step() -> Step:
        mine = read_launch().rank == rank
        if mine and what == "model":
            take_too_much()
        return Step(what if mine else "")

    if what == "killed":
        memory.PROC = Path(os.environ["FAKE_PROC"])
    return numpy_job.main(make_step, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
