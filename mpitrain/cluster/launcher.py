"""What the launcher (mpirun, mpiexec, srun) says about this process, read before MPI starts.

A launcher and an MPI library that do not belong together start N processes that each believe to be alone, and N
separate trainings would follow. The environment shows it before ``MPI_Init``, which with some pairs would only print a
page and abort.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from mpitrain.errors import HostError, InputError

_ENVIRONMENT = {
    # launcher's way of wiring processes: (size, rank) variables
    "openmpi": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    "pmi": ("PMI_SIZE", "PMI_RANK"),
    "slurm": ("SLURM_NTASKS", "SLURM_PROCID"),
}
_LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")
_LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_BATCH_STEPS = ("", "batch", "4294967291", "4294967292", "4294967294", "extern", "interactive")
"""SLURM_STEP_ID of what is not started by srun: the batch script itself and Slurm's own steps."""

_VOICE = 3.0
"""Seconds by which the ranks of a loaded host may start apart."""


@dataclass(frozen=True)
class Launch:
    """One process as its launcher describes it: ``kind`` is ``openmpi``, ``pmix``, ``pmi``, ``slurm`` or ``none``."""

    kind: str
    size: int
    rank: int

    @property
    def speaks(self) -> bool:
        """Whether this process is the one that prints what all would print."""
        return self.rank == 0

    @property
    def speaks_for_host(self) -> bool:
        """Whether this process is the first of its host, as far as the launcher tells."""
        number = next((n for name in _LOCAL_RANK if (n := _number(os.environ.get(name))) is not None), self.rank)
        return number == 0

    @property
    def under_srun(self) -> bool:
        """Whether srun itself started this process, and no mpirun of an MPI."""
        return self.kind in ("pmix", "slurm") or (
            self.kind == "pmi" and os.environ.get("SLURM_STEP_ID", "") not in _BATCH_STEPS
        )

    @property
    def under_mpirun(self) -> bool:
        """Whether an MPI's own launcher started this process."""
        return self.kind in ("openmpi", "pmi") and not self.under_srun

    @property
    def needs_abort(self) -> bool:
        """Whether a rank that leaves with an error must call ``MPI_Abort`` for the job to end, with its code.

        Open MPI's mpirun kills the rest of the job then, and takes over the rank's code. srun does not kill, as it is
        set up by default; MPICH's mpiexec does, at once, and ends with the signal as its code.
        """
        return self.under_srun or self.kind == "pmi"


def read_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """The launcher's description of this process; ``Launch("none", 1, 0)`` where nobody launched it."""
    for kind in ("openmpi", "pmi"):
        size, rank = (_number(environment.get(name)) for name in _ENVIRONMENT[kind])
        if size is not None and rank is not None:
            return Launch(kind, size, rank)
    if environment.get("SLURM_STEP_ID", "") not in _BATCH_STEPS:
        size, rank = (_number(environment.get(name)) for name in _ENVIRONMENT["slurm"])
        if size is not None and rank is not None:
            return Launch("pmix" if "PMIX_RANK" in environment else "slurm", size, rank)
    return Launch("none", 1, 0)


def local_size_hint(environment: Mapping[str, str] = os.environ) -> int:
    """How many ranks share this node, as far as the environment tells before MPI starts; at least 1."""
    for name in _LOCAL_SIZE:
        if (size := _number(environment.get(name))) is not None:
            return max(1, size)
    if environment.get("SLURM_STEP_ID", "") not in _BATCH_STEPS:
        counts = _tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
        node = _number(environment.get("SLURM_NODEID")) or 0
        return max(1, counts[node]) if node < len(counts) else 1
    return 1


def _tasks_per_node(text: str) -> list[int]:
    """Slurm's ``2(x3),1`` as numbers."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in found for _ in range(int(times or 1))]


def abort_start(launch: Launch, code: int) -> None:
    """End the job where this process leaves it before ``MPI_Init`` and others do not.

    Open MPI's mpirun does so by itself. MPICH's mpiexec takes such a process for one that needs no MPI, and lets the
    others wait for it; what it understands is a line of PMI's, on the socket that it gave to each rank. srun ends
    them after what its ``--wait`` says, else ``--start-timeout`` does.
    """
    descriptor = _number(os.environ.get("PMI_FD"))
    if launch.kind != "pmi" or launch.under_srun or descriptor is None:
        return
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as link:
        link.settimeout(5.0)
        link.sendall(b"cmd=init pmi_version=1 pmi_subversion=1\n")
        link.recv(1024)
        link.sendall(f"cmd=abort exitcode={int(code)}\n".encode())
        link.recv(1024)


def speaks_first(launch: Launch, error: InputError) -> bool:
    """Whether this process is to tell an error that others of the job have met too, before MPI could start.

    One that is not comes back only after a while: Open MPI's mpirun ends all ranks at the first that leaves with an
    error, and that must not be one that has said nothing.
    """
    speaks = launch.speaks_for_host if isinstance(error, HostError) else launch.speaks
    if not speaks:
        time.sleep(_VOICE)
    return speaks


def check_library(launch: Launch, library: str) -> None:
    """Refuse a launcher that cannot wire processes of this MPI library into one world.

    Args:
        launch: from :func:`read_launch`.
        library: what ``MPI_Get_library_version`` says; it may be asked before ``MPI_Init``.

    Raises:
        InputError: the sentence says what to type instead.
    """
    if launch.size <= 1:
        return
    open_mpi = library.startswith("Open MPI")
    name = "Open MPI" if open_mpi else re.split("[:,\n]", library)[0].removesuffix("Version").strip()
    alone = f"each of the {launch.size} processes would train alone"
    if open_mpi and launch.kind == "pmi":
        started = "srun with --mpi=pmi2" if "SLURM_STEP_ID" in os.environ else "the mpiexec of another MPI (MPICH)"
        instead = "srun --mpi=pmix" if "SLURM_STEP_ID" in os.environ else "the mpirun that belongs to Open MPI"
        raise InputError(f"{started} started this Python, whose mpi4py loads {name}, so {alone}: use {instead}")
    if not open_mpi and launch.kind == "openmpi":
        raise InputError(
            f"Open MPI's mpirun started this Python, whose mpi4py loads {name}, so {alone}: "
            f"use the mpiexec that belongs to {name}"
        )
    if launch.kind == "slurm" or (launch.kind == "pmix" and not open_mpi):
        flag = "pmix" if open_mpi else "pmi2"
        raise InputError(
            f"srun started {launch.size} tasks in a way that {name} does not understand, so {alone}: "
            f"use srun --mpi={flag}, or mpirun inside sbatch"
        )


def skip_network_probes(launch: Launch, library: str) -> None:
    """Where all ranks share one node, spare Open MPI 5 a second of looking for networks; before ``MPI_Init``.

    What the user has set about transports stays.
    """
    alone = launch.kind == "openmpi" and local_size_hint() == launch.size
    if alone and library.startswith("Open MPI v5") and not os.environ.keys() & {"OMPI_MCA_btl", "OMPI_MCA_pml"}:
        os.environ["OMPI_MCA_btl"] = "self,sm"  # noqa: SIM112


def share_cores() -> None:
    """Have Open MPI offer the core to others while it waits, as ``waiting`` does, unless the user says otherwise.

    It must be called before ``MPI_Init``.
    """
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")


def check_size(launch: Launch, size: int) -> None:
    """Refuse a world whose size, as MPI reports it, is not what the launcher started.

    Raises:
        InputError: where ``size`` differs from the launcher's number.
    """
    if launch.size != size:
        raise InputError(
            f"the launcher started {launch.size} processes but MPI sees {size}: the launcher and the MPI library that "
            "mpi4py loads do not belong together; use the mpirun of that MPI, or srun with the --mpi it supports"
        )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
