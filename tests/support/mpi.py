"""Launching real MPI jobs from tests, each with a deadline."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """A job that has ended."""

    code: int
    out: str
    err: str

    def check(self) -> Ended:
        assert self.code == 0, f"exit code {self.code}\n--- stdout\n{self.out[-4000:]}\n--- stderr\n{self.err[-8000:]}"
        return self


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which mpirun starts as root, and more ranks than cores."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MPITRAIN_", "_MPITRAIN", "TF_NUM_", "OMP_NUM"))}
    return kept | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":OVERSUBSCRIBE",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_btl": kept.get("OMPI_MCA_btl", "tcp,self,sm"),
        "PYTHONPATH": str(ROOT),
        **(extra or {}),
    }


def mpirun() -> str:
    """The mpirun that stands beside this interpreter, else the one on PATH."""
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    assert found, "no mpirun: scripts/test.sh installs one"
    return found


def launch(
    ranks: int,
    arguments: Sequence[str],
    timeout: float = 120.0,
    extra: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    launcher: Sequence[str] = (),
) -> Ended:
    """Run ``python ARGUMENTS`` on ``ranks`` ranks; a job past its deadline is killed and fails the test."""
    command = [mpirun(), "-np", str(ranks), *launcher, sys.executable, *arguments]
    return run(command, timeout, environment(extra), cwd)


def run(command: Sequence[str], timeout: float, env: Mapping[str, str], cwd: Path | None = None) -> Ended:
    """Run a command in a process group of its own."""
    with subprocess.Popen(
        command,
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(
                f"{' '.join(command)} did not end in {timeout} s\n--- stdout\n{out[-4000:]}\n--- stderr\n{err[-4000:]}"
            ) from None
    return Ended(process.returncode, out, err)
