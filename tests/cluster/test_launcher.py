"""What each launcher tells its processes, and which of them go with which MPI library."""

from __future__ import annotations

import pytest

from mpitrain.cluster.launcher import Launch, check_library, check_size, local_size_hint, read_launch
from mpitrain.errors import InputError

OPEN_MPI, MPICH = "Open MPI v5.0.11, package: Open MPI user@host\0", "MPICH Version:      5.0.2\nMPICH Release date: x"
STEP = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "3", "SLURM_PROCID": "1", "SLURM_STEP_TASKS_PER_NODE": "2,1"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
HYDRA = {"PMI_SIZE": "3", "PMI_RANK": "1", "MPI_LOCALNRANKS": "2"}
BATCH = {"SLURM_NTASKS": "3", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("environment", "launch", "local"),
    [
        ({}, Launch("none", 1, 0), 1),
        (MPIRUN, Launch("openmpi", 3, 1), 2),
        (HYDRA, Launch("pmi", 3, 1), 2),
        # sbatch: the script itself is no task, whatever Slurm calls its step; mpirun inside it is what counts.
        (BATCH, Launch("none", 1, 0), 1),
        (BATCH | {"SLURM_STEP_ID": "batch"}, Launch("none", 1, 0), 1),
        (BATCH | {"SLURM_STEP_ID": "4294967291"}, Launch("none", 1, 0), 1),
        (BATCH | MPIRUN, Launch("openmpi", 3, 1), 2),
        (BATCH | HYDRA, Launch("pmi", 3, 1), 2),
        # mpirun inside sbatch starts its daemons, and so its ranks, through a step of srun.
        (STEP | MPIRUN, Launch("openmpi", 3, 1), 2),
        # srun --mpi=pmix, pmi2, none.
        (STEP | {"PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.7.0"}, Launch("pmix", 3, 1), 2),
        (STEP | {"PMI_SIZE": "3", "PMI_RANK": "1"}, Launch("pmi", 3, 1), 2),
        (STEP | {"SLURM_NODEID": "1"}, Launch("slurm", 3, 1), 1),
        (STEP, Launch("slurm", 3, 1), 2),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "4(x2),1"}, Launch("slurm", 3, 1), 4),
        ({"OMPI_COMM_WORLD_SIZE": "x", "OMPI_COMM_WORLD_RANK": ""}, Launch("none", 1, 0), 1),
    ],
)
def test_the_environment_of_each_launcher(environment: dict[str, str], launch: Launch, local: int) -> None:
    assert read_launch(environment) == launch
    assert local_size_hint(environment) == local
    assert launch.speaks == (launch.rank == 0)


@pytest.mark.parametrize(
    ("kind", "library", "fits"),
    [
        ("openmpi", OPEN_MPI, True),
        ("openmpi", MPICH, False),
        ("pmi", OPEN_MPI, False),
        ("pmi", MPICH, True),
        ("pmix", OPEN_MPI, True),
        ("pmix", MPICH, False),
        ("slurm", OPEN_MPI, False),
        ("slurm", MPICH, False),
    ],
)
def test_a_pair_that_would_train_alone_is_refused(kind: str, library: str, fits: bool) -> None:
    check_library(Launch(kind, 1, 0), library)  # one process is rightly alone
    if fits:
        check_library(Launch(kind, 3, 0), library)
        return
    with pytest.raises(InputError, match=r"each of the 3 processes would train alone: use ") as refused:
        check_library(Launch(kind, 3, 0), library)
    assert "\n" not in str(refused.value)
    assert ("MPICH" if library is MPICH else "Open MPI") in str(refused.value)
    assert "Version" not in str(refused.value)


def test_the_sentence_names_the_right_flag_of_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    with pytest.raises(InputError, match="use the mpirun that belongs to Open MPI"):
        check_library(Launch("pmi", 3, 0), OPEN_MPI)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with pytest.raises(InputError, match="use srun --mpi=pmix"):
        check_library(Launch("pmi", 3, 0), OPEN_MPI)
    with pytest.raises(InputError, match="use srun --mpi=pmi2, or mpirun inside sbatch"):
        check_library(Launch("slurm", 3, 0), MPICH)


def test_a_world_of_another_size_is_refused() -> None:
    check_size(Launch("openmpi", 3, 0), 3)
    with pytest.raises(InputError, match="the launcher started 3 processes but MPI sees 1"):
        check_size(Launch("openmpi", 3, 0), 1)
