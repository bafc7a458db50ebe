"""What one rank sees of its host. Nothing here judges, and nothing imports TensorFlow."""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from mpitrain.cluster import host, shared_memory
from mpitrain.cluster.cores import slurm_cores, visible_cores
from mpitrain.cluster.launcher import Launch
from mpitrain.cluster.mpi import has_symbol
from mpitrain.cluster.mpi_library import Library
from mpitrain.data.mnist import find_files
from mpitrain.data.sources import FILES, SAMPLE, SAMPLE_FOLDER, cache_folder, known
from mpitrain.errors import InputError
from mpitrain.launching import find

_PINS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


@dataclass
class Facts:
    """What one rank sees; plain values, so that they travel.

    Args:
        rank: in the job.
        host: its host's name.
        versions: package → version, or None where it is missing.
        python: the interpreter's path.
        processor: its type.
        mpi: vendor and version of the library.
        mpi_path: of the library's file.
        mpi_needs: bytes of /dev/shm that the library needs for two ranks.
        launchers: on PATH: (path, vendor and version, whether it fits the library); of a host's first rank alone.
        own_launcher: path of the launcher that fits; empty where there is none.
        ulfm: whether the library has user-level failure mitigation.
        horovod: its version, or None.
        cores: that this process may use.
        slurm_cores: SLURM_CPUS_PER_TASK.
        pins: variables that tie threads to cores, as ``NAME=value``.
        shm: bytes of /dev/shm, in all and free, before MPI started.
        files: limit of open files; None without one.
        locked: limit of locked bytes; None without one.
        infiniband: whether there is a card that locks memory.
        addresses: of this host's own name.
        data: a folder with the data; None where it is missing.
        thread_level: that MPI gives; empty until it runs.
        sees_run_dir: whether this rank sees the run directory of rank 0; None where nobody does.
        unresolved: hosts of the job whose names do not resolve here.
        offset: seconds that this host's clock is ahead of rank 0's.
    """

    rank: int
    host: str
    versions: dict[str, str | None]
    python: str
    processor: str
    mpi: str
    mpi_path: str
    mpi_needs: int
    launchers: list[tuple[str, str, bool]]
    own_launcher: str
    ulfm: bool
    horovod: str | None
    cores: frozenset[int]
    slurm_cores: int | None
    pins: str
    shm: tuple[int, int]
    files: int | None
    locked: int | None
    infiniband: bool
    addresses: list[str]
    data: str | None
    thread_level: str = ""
    sees_run_dir: bool | None = None
    unresolved: tuple[str, ...] = ()
    offset: float = 0.0


def look(launch: Launch, library: Library, dataset: str, data_dir: Path | None) -> Facts:
    """Look around; before MPI starts, since it starts processes.

    Raises:
        InputError: the data set's name means nothing.
    """
    first = launch.speaks_for_host
    return Facts(
        rank=launch.rank,
        host=os.uname().nodename,
        versions=host.versions(),
        python=sys.executable,
        processor=host.processor(),
        mpi=library.name,
        mpi_path=library.path,
        mpi_needs=shared_memory.needed(library, 2),
        launchers=_launchers(library) if first else [],
        own_launcher=_own_launcher(library) if first else "",
        ulfm=has_symbol("MPIX_Comm_revoke"),
        horovod=host.installed("horovod"),
        cores=visible_cores(),
        slurm_cores=slurm_cores(),
        pins=" ".join(f"{name}={os.environ[name]}" for name in _PINS if name in os.environ),
        shm=shared_memory.room(),
        files=host.soft_limit(resource.RLIMIT_NOFILE),
        locked=host.soft_limit(resource.RLIMIT_MEMLOCK),
        infiniband=host.has_infiniband(),
        addresses=host.resolve(os.uname().nodename),
        data=_data(dataset, data_dir),
    )


def _own_launcher(library: Library) -> str:
    try:
        return find.find_launcher(library).path
    except InputError:
        return ""


def _launchers(library: Library) -> list[tuple[str, str, bool]]:
    return [
        (found, "no known launcher", False)
        if isinstance(found, str)
        else (found.path, find.describe(found), find.fits(found, library))
        for found in find.on_path()
    ]


def _data(dataset: str, data_dir: Path | None) -> str | None:
    source = known(dataset)
    if data_dir is not None:
        try:
            find_files(data_dir)
        except InputError:
            return None
        return str(data_dir)
    if source is SAMPLE:
        return str(SAMPLE_FOLDER)
    folder = cache_folder() / source.name
    return str(folder) if all((folder / name).is_file() for name in FILES) else None
