"""Room for the MPI library's own segments in /dev/shm: a write into one that finds no memory ends in SIGBUS.

mpitrain itself puts nothing there (``node_memory``). Containers often have 64 MiB.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from mpitrain.cluster.launcher import Launch, local_size_hint
from mpitrain.cluster.mpi_library import MPICH, Library
from mpitrain.errors import HostError

FOLDER = Path("/dev/shm")
MIB = 1 << 20
# Measured with 2 to 8 ranks: 5.2 MiB each with MPICH 5, which writes to all of it. Open MPI reserves 16 MiB for each
# (4 before version 5) and writes to little, but takes any size from which a few messages can be cut.
_MPICH_NEEDS, _OPEN_MPI_NEEDS, _OPEN_MPI_TAKES = 6 * MIB, 2 * MIB, 16 * MIB


def room(folder: Path = FOLDER) -> tuple[int, int]:
    """Bytes in all, and bytes that are free; zeros where there is no such folder."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def needed(library: Library, ranks: int) -> int:
    """Bytes that the library needs there for ``ranks`` ranks of this host; a rank alone there needs none."""
    if ranks < 2:
        return 0
    return ranks * (_MPICH_NEEDS if library.form == MPICH else _OPEN_MPI_NEEDS)


def fit(
    launch: Launch,
    library: Library,
    folder: Path = FOLDER,
    environment: MutableMapping[str, str] = os.environ,
) -> None:
    """Have the library make do with the room that there is; before ``MPI_Init``.

    Open MPI's segments are made smaller where they would not fit, unless the user has set their size.

    Raises:
        HostError: where there is too little for any.
    """
    ranks = local_size_hint(environment) if launch.size > 1 else 1
    total, free = room(folder)
    if free < (need := needed(library, ranks)):
        there = f"has {free // MIB} MiB free" if total else "does not exist"
        raise HostError(
            f"{folder} on {os.uname().nodename} {there} but {library.name} needs {need // MIB} MiB there for "
            f"{ranks} ranks: {remedy(need)}, or start fewer ranks on that host"
        )
    name = "OMPI_MCA_btl_vader_segment_size" if library.version[:1] == (4,) else "OMPI_MCA_btl_sm_segment_size"
    if library.form != MPICH and ranks > 1 and free < ranks * _OPEN_MPI_TAKES:
        environment.setdefault(name, str(1 << (free // ranks).bit_length() - 1))


def remedy(need: int) -> str:
    """What gives /dev/shm ``need`` bytes, with much to spare."""
    size = f"{max(256, 4 * need // MIB)}m"
    return f"make it larger (docker run --shm-size={size}, or as root mount -o remount,size={size} /dev/shm)"
