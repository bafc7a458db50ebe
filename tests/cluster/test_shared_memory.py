"""Whether MPI's own segments fit, and what is done where they do not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpitrain.cluster import shared_memory
from mpitrain.cluster.launcher import Launch
from mpitrain.cluster.mpi_library import Library
from mpitrain.errors import HostError
from tests.support.mpi import launch

MIB = 1 << 20
OPEN_MPI = Library("Open MPI v5.0.11, package: Open MPI user@host\0")
DEBIAN = Library("Open MPI v4.1.4, package: Debian OpenMPI")
MPICH = Library("MPICH Version:      5.0.2\nMPICH Release date: x")
FOUR = {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "MPI_LOCALNRANKS": "4"}
SIZE, VADER = "OMPI_MCA_btl_sm_segment_size", "OMPI_MCA_btl_vader_segment_size"


def test_what_libraries_say_of_themselves() -> None:
    assert (OPEN_MPI.name, OPEN_MPI.form, OPEN_MPI.version) == ("Open MPI 5.0.11", "openmpi", (5, 0, 11))
    assert (MPICH.name, MPICH.form, MPICH.version) == ("MPICH 5.0.2", "mpich", (5, 0, 2))
    intel = Library("Intel(R) MPI Library 2021.12 for Linux* OS\n")
    assert (intel.name, intel.form) == ("Intel MPI Library 2021.12", "mpich")


@pytest.mark.parametrize(
    ("library", "free", "added"),
    [
        (OPEN_MPI, 64, {}),
        (OPEN_MPI, 40, {SIZE: str(8 * MIB)}),
        (OPEN_MPI, 8, {SIZE: str(2 * MIB)}),
        (DEBIAN, 20, {VADER: str(4 * MIB)}),
        (MPICH, 24, {}),
    ],
)
def test_the_library_makes_do(
    library: Library, free: int, added: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "room", lambda folder: (free * MIB, free * MIB))
    environment = {**FOUR}
    shared_memory.fit(Launch("openmpi", 4, 0), library, environment=environment)
    assert environment == FOUR | added


@pytest.mark.parametrize(("library", "free"), [(OPEN_MPI, 7), (MPICH, 23), (DEBIAN, 0)])
def test_too_little_is_one_sentence(library: Library, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "room", lambda folder: (64 * MIB, free * MIB))
    with pytest.raises(HostError, match=rf"/dev/shm on {os.uname().nodename} has {free} MiB free but .* needs \d+ MiB"):
        shared_memory.fit(Launch("openmpi", 4, 0), library, environment={**FOUR})


def test_a_rank_alone_on_its_host_needs_none(tmp_path: Path) -> None:
    shared_memory.fit(Launch("none", 1, 0), MPICH, tmp_path / "missing", {})
    shared_memory.fit(Launch("pmi", 3, 0), MPICH, tmp_path / "missing", {"MPI_LOCALNRANKS": "1"})


def test_the_rank_that_speaks_may_come_last() -> None:
    """Open MPI's launcher ends all ranks at the first that leaves."""
    program = (
        "import os, sys, time; from mpitrain.__main__ import main; from mpitrain.cluster import shared_memory; "
        "shared_memory.needed = lambda library, ranks: 1 << 60; "
        "time.sleep(1.0 * (os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK')) == '0')); "
        "sys.exit(main(['--dataset', 'mnist-sample']))"
    )
    ended = launch(2, ["-c", program], 30)
    assert ended.code == 2
    assert ended.err.count("mpitrain: error: /dev/shm on") == 1, ended.err
