from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_lab.slurm import Slurm
from tests.cluster_lab.test_slurm import WIRING
from tests.cluster_lab.trained import Mpi, await_steps
from tests.support.mpi import Ended

pytestmark = pytest.mark.root
STALL, AFTER = 4, 10

# Slurm's SIGUSR1 reaches the shell of the job alone, which passes it on; where the shell has become the launcher there
# is nothing to do.
RECIPES = {
    "trap": """\
"$@" & launcher=$!
trap 'kill -USR1 $launcher' USR1
while kill -0 $launcher 2>/dev/null; do wait $launcher; code=$?; done
exit $code
""",
    "exec": 'exec "$@"\n',
}


@pytest.mark.parametrize("mode", ["allreduce", "ps-async"])
def test_sigusr1_ends_a_step_together(slurm: Slurm, mpi: Mpi, mode: str) -> None:
    with _step(slurm, mpi, mode) as (run_dir, ended):
        slurm.run(["scancel", "--signal=USR1", _running(slurm)]).check()
        _check_preempted(ended(AFTER), run_dir, "SIGUSR1")


def test_sigterm_may_come_again_and_again(slurm: Slurm, mpi: Mpi) -> None:
    with _step(slurm, mpi, "ps-sync") as (run_dir, ended):
        step = _running(slurm)
        slurm.run(["bash", "-c", f"for i in 1 2 3; do scancel --signal=TERM {step}; done"])
        _check_preempted(ended(AFTER), run_dir, "SIGTERM")


def test_a_cancelled_job_ends_together(slurm: Slurm, mpi: Mpi) -> None:
    with _step(slurm, mpi, "allreduce") as (run_dir, ended):
        slurm.run(["scancel", _running(slurm).partition(".")[0]]).check()
        _check_preempted(ended(AFTER), run_dir, "SIGTERM")


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_own_launcher_passes_sigusr1_on(slurm: Slurm, mpi: Mpi, recipe: str) -> None:
    run_dir = slurm.lab.folder / f"{mpi.name}-{recipe}"
    script = slurm.lab.folder / f"{recipe}.sbatch"
    script.write_text(f"#!/bin/bash\n{RECIPES[recipe]}")
    bound = ["--bind-to", "none", "-x", "PYTHONPATH"] if mpi.name == "openmpi" else []
    before = _processes(slurm)
    job = slurm.queue(
        ["--nodes=2", "--ntasks=3", str(script), mpi.launcher, *bound, *_program(mpi, "ps-async", run_dir)]
    )
    await_steps(run_dir)
    slurm.run(["scancel", "--signal=USR1", "--batch", job]).check()
    _check_preempted(slurm.ended(job, 30), run_dir, "SIGUSR1")
    _check_empty(slurm, before)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_rank_ends_the_step(slurm: Slurm, mpi: Mpi, rank: int) -> None:
    """By default srun lets the others run on; with Open MPI's wiring it kills them, faster than they can write."""
    with _step(slurm, mpi, "allreduce") as (run_dir, ended):
        _signal(slurm, run_dir, rank, "KILL")
        seen = ended(AFTER)
    assert seen.code
    assert re.search(r"srun: error: node\d: tasks? \S+: Killed", seen.err), seen.err
    if mpi.name == "mpich" or (run_dir / "summary.json").exists():
        assert re.search(rf"mpitrain: error: rank {rank} on node\d .* is gone", seen.err), seen.err
        assert (_summary(run_dir)["status"], _summary(run_dir)["rank"]) == ("failed", rank)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_stopped_rank_ends_the_step(slurm: Slurm, mpi: Mpi, rank: int) -> None:
    """Rank 2 is alone on its node."""
    with _step(slurm, mpi, "ps-sync") as (run_dir, ended):
        _signal(slurm, run_dir, rank, "STOP")
        seen = ended(STALL + AFTER)
    assert seen.code in (72, 137), seen.err
    assert re.search(rf"mpitrain: error: rank {rank} on node\d gives no sign of life", seen.err), seen.err
    assert (_summary(run_dir)["status"], _summary(run_dir)["rank"]) == ("stalled", rank)


@contextmanager
def _step(slurm: Slurm, mpi: Mpi, mode: str) -> Iterator[Any]:
    """A training under srun in the midst of its steps; in the end no node has anything of it."""
    run_dir = slurm.lab.folder / f"{mpi.name}-{mode}-{time.monotonic_ns()}"
    before = _processes(slurm)
    command = ["srun", f"--mpi={WIRING[mpi.name]}", "--nodes=2", "--ntasks=3", *_program(mpi, mode, run_dir)]
    with slurm.start(command) as job:

        def ended(seconds: float) -> Ended:
            out, err = job.communicate(timeout=seconds)
            return Ended(job.returncode, out, err)

        try:
            await_steps(run_dir)
            yield run_dir, ended
            _check_empty(slurm, before)
        finally:
            if job.poll() is None:
                slurm.run(["scancel", "--signal=KILL", _running(slurm)])
                subprocess.Popen.kill(job)


def _program(mpi: Mpi, mode: str, run_dir: Path) -> list[str]:
    options = ["--train-steps", "100000", "--stall-timeout", str(STALL), "--run-dir", str(run_dir)]
    return [mpi.python, "-m", "tests.cluster_lab.job", "--mode", mode, *options]


def _running(slurm: Slurm) -> str:
    """The number of the only step."""
    (step,) = slurm.run(["squeue", "--steps", "--noheader", "--format=%i"]).check().out.split()
    return step


def _signal(slurm: Slurm, run_dir: Path, rank: int, name: str) -> None:
    log = (run_dir / f"rank.{rank}" / "log.txt").read_text()
    found = re.search(r" on (\w+), process (\d+),", log)
    assert found, log
    slurm.lab.on(found[1], ["kill", f"-{name}", found[2]]).check()


def _processes(slurm: Slurm) -> set[int]:
    return {pid for host in slurm.lab.names for pid in slurm.lab.processes(host)}


def _check_empty(slurm: Slurm, before: set[int]) -> None:
    end = time.monotonic() + AFTER
    while left := _processes(slurm) - before:
        assert time.monotonic() < end, [slurm.lab.processes(host) for host in slurm.lab.names]
        time.sleep(0.1)
    shared = [slurm.lab.on(host, ["ls", "-A", "/dev/shm"]).check().out for host in slurm.lab.names]
    assert not any(shared), (left, shared)


def _summary(run_dir: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def _check_preempted(ended: Ended, run_dir: Path, name: str) -> None:
    summary = _summary(run_dir)
    assert (summary["status"], summary["cause"]) == ("preempted", f"stopped by {name}"), ended
    assert ended.code == 75, ended
    logs = [path.read_text() for path in run_dir.glob("rank.*/log.txt")]
    assert [re.findall(r"ended after (\d+) updates", log) for log in logs] == [[str(summary["updates"])]] * 3
    assert summary["updates"] > 0
