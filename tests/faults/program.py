"""A training in which one rank suffers a fault, where code of the user's would run.

mpirun -np 4 python -m tests.faults.program FAULT MOMENT RANK FOLDER SECONDS [OPTIONS OF TRAIN]

A fault that passes does so after SECONDS. The rank that suffers leaves FOLDER/suffered, with the time; each rank
leaves the names that it has in /dev/shm.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.cluster import job, watchdog
from mpitrain.cluster.launcher import read_launch
from mpitrain.parameters.step import Batch, OnReady, StepResult
from mpitrain.training import output, run
from mpitrain.training.saving import Saver
from mpitrain.training.trainer import Trainer
from tests.support import numpy_job

SECONDS, AT_STEP, AT_VERSION = 0.02, 7, 10
"""Time of a step; the step of the rank, and the version evaluated, at which the fault comes."""


def defect() -> None:
    raise ValueError("the model has a defect")


def defect_in_thread() -> None:
    threading.Thread(target=defect).start()
    time.sleep(1000)


def no_memory() -> None:
    raise MemoryError


def loop() -> None:
    while True:
        time.sleep(0.01)


def freeze() -> None:
    """What holds the interpreter's lock stops every thread, the watchdog too."""
    ctypes.PyDLL(None).sleep(1000)


def pause(seconds: float) -> None:
    me = os.getpid()
    again = ["sh", "-c", f"sleep {seconds}; kill -CONT {me}"]
    subprocess.Popen(again, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    send(signal.SIGSTOP)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def suffering(fault: str, seconds: float) -> Callable[[], object]:
    """What does ``fault``; those that pass take ``seconds``."""
    return {
        "raise": defect,
        "thread": defect_in_thread,
        "memory": no_memory,
        "exit": lambda: sys.exit(3),
        "vanish": lambda: os._exit(0),
        "kill": lambda: send(signal.SIGKILL),
        "crash": lambda: send(signal.SIGSEGV),
        "stop": lambda: send(signal.SIGSTOP),
        "loop": loop,
        "freeze": freeze,
        "slow": lambda: time.sleep(seconds),
        "pause": lambda: pause(seconds),
    }[fault]


class Fault:
    """A fault that comes once, at its moment.

    Args:
        fault: a key of :func:`suffering`; ``none`` for a run without one.
        moment: when.
        folder: for the traces.
        seconds: of a fault that passes.
    """

    def __init__(self, fault: str, moment: str, folder: Path, seconds: float) -> None:
        self._fault, self._moment, self._folder, self._seconds = fault, moment, folder, seconds

    def at(self, moment: str) -> None:
        """Suffer, if that is the moment, for the first time."""
        trace = self._folder / "suffered"
        if self._fault != "none" and moment == self._moment and not trace.exists():
            trace.write_text(f"{time.time()}")
            suffering(self._fault, self._seconds)()

    def before(self, owner: Any, name: str, moment: str) -> None:
        """Let the fault come just before ``owner.name`` is called at ``moment``."""
        plain = getattr(owner, name)

        def late(*args: Any, **kwargs: Any) -> Any:
            self.at(moment)
            return plain(*args, **kwargs)

        setattr(owner, name, late)

    def after(self, owner: Any, name: str, moment: str) -> None:
        """Let the fault come just after ``owner.name`` has returned at ``moment``."""
        plain = getattr(owner, name)

        def followed(*args: Any, **kwargs: Any) -> Any:
            result = plain(*args, **kwargs)
            self.at(moment)
            return result

        setattr(owner, name, followed)

    def while_saving(self) -> None:
        """Let the fault come when a rank's slice of the second checkpoint has gone to its thread."""
        plain = Saver.save

        def followed(saver: Saver, version: int, *args: Any, **kwargs: Any) -> None:
            plain(saver, version, *args, **kwargs)
            if version == AT_VERSION:
                self.at("checkpoint")

        Saver.save = followed  # type: ignore[method-assign, assignment]


class Step(numpy_job.PixelStep):
    def __init__(self, fault: Fault) -> None:
        fault.at("start")
        super().__init__(SECONDS)
        self._fault = fault
        self._evaluations = 0

    def run(self, parameters: np.ndarray, batch: Batch, on_ready: OnReady | None = None) -> StepResult:
        if self.runs == AT_STEP:
            self._fault.at("step")
        return super().run(parameters, batch, on_ready)

    def evaluate(self, parameters: np.ndarray, batch: Batch) -> np.ndarray:
        self._fault.at("evaluation")
        return super().evaluate(parameters, batch)


def on_a_server(fault: Fault) -> None:
    """A server runs no model: its faults come in the optimizer, and where it waits for the evaluation's end."""
    make = run.shared_optimizer

    def made(*args: Any) -> Any:
        fault.at("start")
        optimizer = make(*args)
        apply = optimizer.apply

        def late(*args: Any, **kwargs: Any) -> None:
            if optimizer.iterations == AT_STEP:
                fault.at("step")
            apply(*args, **kwargs)

        optimizer.apply = late  # type: ignore[method-assign]
        return optimizer

    run.shared_optimizer = made  # type: ignore[assignment]
    fault.before(run.meeting, "evaluate", "evaluation")


def note_shared_memory(folder: Path, rank: int) -> None:
    plain = job.start_mpi

    def start(*args: Any) -> Any:
        world = plain(*args)
        mapped = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
        names = sorted(name for name in mapped if name.startswith("/dev/shm/"))
        (folder / f"shm.{rank}").write_text("\n".join(names))
        return world

    job.start_mpi = start  # type: ignore[assignment]


def main(name: str, moment: str, rank: int, folder: Path, seconds: float, options: list[str]) -> int:
    me = read_launch().rank
    note_shared_memory(folder, me)
    fault = Fault(name if me == rank else "none", moment, folder, seconds)
    serves = "--mode" in options and options[options.index("--mode") + 1] != "allreduce" and me < 2
    if serves:
        on_a_server(fault)
    fault.before(output.Output, "save", "saving")
    fault.while_saving()
    fault.after(Trainer, "fit", "after")
    fault.before(job, "finalize", "finalize")
    if os.environ.get("FAULTS_NO_JUDGEMENT"):
        watchdog.Watchdog._judge = lambda *_: None  # type: ignore[method-assign]
    fault.at("before")
    return numpy_job.main(lambda: Step(fault), options)


if __name__ == "__main__":
    _, given, when, which, where, lasting, *rest = sys.argv
    sys.exit(main(given, when, int(which), Path(where), float(lasting), rest))
