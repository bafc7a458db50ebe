from __future__ import annotations

import pytest

from tests.cluster_lab.slurm import Slurm
from tests.cluster_lab.trained import Mpi, check_trained, training
from tests.support.mpi import ROOT

pytestmark = pytest.mark.root
SCRIPT = str(ROOT / "scripts" / "slurm" / "train.sbatch")
WIRING = {"openmpi": "pmix", "mpich": "pmi2"}


def test_sbatch_trains_with_srun(slurm: Slurm, mpi: Mpi) -> None:
    run_dir = slurm.lab.folder / f"slurm-{mpi.name}"
    ended = slurm.submit(
        ["--nodes=2", SCRIPT, *training("ps-async", run_dir)], 180, {"VIRTUAL_ENV": str(mpi.prefix)}
    ).check()
    assert f"srun --mpi={WIRING[mpi.name]} " in ended.out
    check_trained(run_dir, "ps-async")


def test_sbatch_trains_with_the_own_launcher(slurm: Slurm, mpi: Mpi) -> None:
    run_dir = slurm.lab.folder / f"slurm-{mpi.name}-own"
    extra = {"VIRTUAL_ENV": str(mpi.prefix), "START_WITH": "mpirun"}
    ended = slurm.submit(["--nodes=2", SCRIPT, *training("allreduce", run_dir)], 180, extra).check()
    assert mpi.launcher in ended.out
    check_trained(run_dir, "allreduce")


def test_sbatch_finds_the_environment_of_the_folder(slurm: Slurm, mpi: Mpi) -> None:
    link = slurm.lab.folder / ".venv"
    link.unlink(missing_ok=True)
    link.symlink_to(mpi.prefix)
    ended = slurm.submit([SCRIPT, "--dry-run"], 60, {"VIRTUAL_ENV": ""}).check()
    assert f"{link}/bin/python -m mpitrain --dry-run" in ended.out


def test_the_exit_code_of_a_job_is_the_program_s(slurm: Slurm, mpi: Mpi) -> None:
    ended = slurm.submit(["--nodes=2", SCRIPT, "--model", "nonsense"], 60, {"VIRTUAL_ENV": str(mpi.prefix)})
    assert ended.code == 2
    assert ended.out.count("mpitrain: error:") == 1


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
