"""The table of ``docs/exit-codes.md``, as far as it is about the MPIs' own launchers on one machine."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from mpitrain.errors import ExitCode
from tests.cluster_lab.trained import Mpi, await_steps
from tests.support.mpi import environment, run

FAILURES = {
    "0 none 0": ExitCode.DONE,
    "1 diverge 3": ExitCode.DIVERGED,
    "1 raise 3": ExitCode.OWN_FAILURE,
    "0 raise 3": ExitCode.OWN_FAILURE,
    "2 sleep 3": ExitCode.STALLED,
    "2 stop 3": ExitCode.STALLED,
    "2 memory 3": ExitCode.OUT_OF_MEMORY,
}
KILLED = {"openmpi": 137, "mpich": 9}
SIGNALS = {
    # to the launcher: Open MPI's code, MPICH's
    signal.SIGUSR1: (75, 75),
    signal.SIGINT: (1, 130),
    signal.SIGTERM: (1, 143),
}


@pytest.mark.parametrize("fault", FAILURES)
def test_the_launcher_hands_the_code_on(mpi: Mpi, fault: str, tmp_path: Path) -> None:
    ended = run(_command(mpi, tmp_path, 20), 60, environment({"FAULT": fault}))
    assert ended.code == FAILURES[fault], ended.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary.get("exit_code", 0) == FAILURES[fault], "on a rank that itself did nothing wrong"


def test_bad_input(mpi: Mpi, tmp_path: Path) -> None:
    ended = run([*_command(mpi, tmp_path, 20), "--batch-size", "0"], 60, environment())
    assert ended.code == ExitCode.BAD_INPUT, ended.err


def test_a_killed_rank_shows_in_the_launcher_s_own_way(mpi: Mpi, tmp_path: Path) -> None:
    ended = run(_command(mpi, tmp_path, 20), 60, environment({"FAULT": "1 kill 3"}))
    assert ended.code == KILLED[mpi.name], ended.err
    summary = tmp_path / "run" / "summary.json"
    # MPICH's mpiexec kills the others faster than they could write.
    assert not summary.exists() if mpi.name == "mpich" else json.loads(summary.read_text())["exit_code"] == 71


@pytest.mark.parametrize("fault", ["", "0 disk 0"])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_the_launcher(mpi: Mpi, number: signal.Signals, fault: str, tmp_path: Path) -> None:
    command = _command(mpi, tmp_path, 100000)
    settings = environment({"FAULT": fault} if fault else {})
    nothing = subprocess.DEVNULL
    with subprocess.Popen(command, env=settings, stdin=nothing, stdout=nothing, stderr=nothing) as job:
        try:
            await_steps(tmp_path / "run")
            job.send_signal(number)
            code = job.wait(15)
        finally:
            job.kill()
    assert code == SIGNALS[number][mpi.name == "mpich"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == ("preempted" if number == signal.SIGUSR1 else "interrupted")
    last = [path.read_text().splitlines()[-1] for path in (tmp_path / "run").glob("rank.*/log.txt")]
    assert all(("ended after" if number == signal.SIGUSR1 else "was ended by SIG") in line for line in last), last


def _command(mpi: Mpi, folder: Path, steps: int) -> list[str]:
    options = ["--train-steps", str(steps), "--stall-timeout", "3", "--run-dir", str(folder / "run")]
    return [mpi.launcher, "-np", "3", mpi.python, "-m", "tests.cluster_lab.job", *options]
