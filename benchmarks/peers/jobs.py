"""Starting whole jobs of mpitrain and of its peers, each on the same work, and reading how fast they were."""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitrain.models import MODELS

DEADLINE = 300.0
"""Seconds for a job."""

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
_RATE = "samples_per_second_per_worker"


@dataclass(frozen=True)
class Task:
    """What a job is to do.

    Args:
        model: a key of ``MODELS``.
        steps: of each worker that are timed, about.
        dataset: what mpitrain's ``--dataset`` takes.
    """

    model: str
    steps: int
    dataset: str = "mnist"

    @property
    def flags(self) -> list[str]:
        """As the programs of this package take them."""
        return ["--model", self.model, "--steps", str(self.steps), "--dataset", self.dataset]


@dataclass(frozen=True)
class Measured:
    """Samples/s of each worker, and what the job chose."""

    rate: float
    note: str = ""


Job = Callable[[Task], Measured]


def mpitrain(ranks: int, *options: str, updates: int = 1, **environment: str) -> Job:
    """A job of mpitrain.

    Args:
        ranks: number of processes.
        options: of the command line.
        updates: for each step of a worker.
        environment: variables.
    """

    def job(task: Task) -> Measured:
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder) / "run"
            steps = (task.steps + 10) * updates
            command = ["-m", "mpitrain", "--model", task.model, "--dataset", task.dataset, "--train-steps", str(steps)]
            command += ["--eval-every", "0", "--threads", "1", "--run-dir", str(run_dir), *options]
            _output([*_mpirun(ranks), sys.executable, *command], environment)
            summary = json.loads((run_dir / "summary.json").read_text())
        return Measured(float(summary[_RATE]), summary["choices"].get("allreduce", ""))

    return job


def horovod_program(task: Task) -> Measured:
    """A Horovod user's own program, with two workers."""
    command = [*_mpirun(2), sys.executable, "-m", "benchmarks.peers.horovod_program", *task.flags]
    return _read(_output(command, _ONE_THREAD))


def multi_worker_mirrored(task: Task) -> Measured:
    """``MultiWorkerMirroredStrategy`` with two workers."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    flags = ["-m", "benchmarks.peers.multi_worker_mirrored", *task.flags, "--hosts", hosts]
    return _mean([[sys.executable, *flags, "--task", str(worker)] for worker in (0, 1)])


def tf1_servers(sync: bool) -> Job:
    """A TensorFlow 1 job with one parameter server and two workers."""

    def job(task: Task) -> Measured:
        server, *workers = (f"127.0.0.1:{port}" for port in free_ports(3))
        spec = MODELS[task.model]
        flags = ["-m", "benchmarks.peers.tf1_ps", "--model", task.model, "--dataset", task.dataset]
        flags += ["--ps_hosts", server, "--worker_hosts", ",".join(workers), "--issync", str(int(sync))]
        flags += ["--batch_size", str(spec.batch_size), "--lr", str(spec.learning_rate)]
        flags += ["--train_steps", str((task.steps + 20) * (1 if sync else 2))]
        jobs = [("worker", 0), ("worker", 1), ("ps", 0)]
        return _mean([[sys.executable, *flags, "--job_name", n, "--task_index", str(i)] for n, i in jobs], serving=1)

    return job


def keras_alone(task: Task) -> Measured:
    """One process of Keras alone."""
    told = _read(_output([sys.executable, "-m", "benchmarks.peers.keras_alone", *task.flags], _ONE_THREAD))
    return Measured(told.rate, told.note)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _mpirun(ranks: int) -> list[str]:
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if not found:
        raise SystemExit("there is no mpirun on PATH")
    return [found, "-np", str(ranks)]


def _output(command: Sequence[str], environment: dict[str, str]) -> str:
    """What a job prints; it says why where it fails."""
    done = subprocess.run(
        command,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return done.stdout


def _mean(commands: Sequence[Sequence[str]], serving: int = 0) -> Measured:
    """Start processes that find each other; the mean of the workers. The last ``serving`` never end by themselves."""
    started = []
    with tempfile.TemporaryFile("w+") as complaints:
        try:
            for command in commands:
                process: subprocess.Popen[str] = subprocess.Popen(
                    command,
                    env=os.environ | _ONE_THREAD,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                    text=True,
                )
                started.append(process)
            told = [process.communicate(timeout=DEADLINE)[0] for process in started[: len(started) - serving]]
        finally:
            for process in started:
                process.kill()
                process.wait()
        complaints.seek(0)
        if not all(told):
            raise SystemExit(f"{' '.join(commands[0])} and its peers failed:\n{complaints.read()[-4000:]}")
    return Measured(statistics.mean(_read(text).rate for text in told))


def _read(output: str) -> Measured:
    told: dict[str, Any] = json.loads(output.splitlines()[-1])
    return Measured(told.pop(_RATE), ", ".join(f"{k}={v}" for k, v in told.items() if k != "global_step"))
