"""``python -m mpitrain.launching.probe``: what a run needs to know of a host, as one line of JSON; run there by ssh."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

from mpitrain.cluster import host
from mpitrain.cluster.cores import visible_cores
from mpitrain.cluster.networks import interfaces
from mpitrain.errors import InputError

MARK = "mpitrain-probe "
"""What the line begins with: login shells may print lines of their own."""


@dataclass(frozen=True)
class Probe:
    """A host as it sees itself.

    Args:
        host: its own name.
        versions: package → version, or None where it is missing.
        mpi: vendor and version of the library; empty where none can be loaded, and ``fault`` says why.
        fault: why mpi4py cannot be loaded.
        cores: how many a process may use.
        shm: free bytes of /dev/shm.
        needs: bytes of it that MPI needs for two ranks.
        networks: interface → (IPv4 address, netmask), without loopback.
    """

    host: str
    versions: dict[str, str | None]
    mpi: str
    fault: str
    cores: int
    shm: int
    needs: int
    networks: dict[str, tuple[str, str]]

    @classmethod
    def of(cls, values: dict[str, Any]) -> Probe:
        """From what :func:`main` printed."""
        return cls(**{**values, "networks": {name: (a, m) for name, (a, m) in values["networks"].items()}})


def probe() -> Probe:
    """This host."""
    mpi, fault, free, needs = "", "", 0, 0
    try:
        from mpitrain.cluster import shared_memory
        from mpitrain.cluster.mpi_library import Library

        library = Library.loaded()
        mpi, free, needs = library.name, shared_memory.room()[1], shared_memory.needed(library, 2)
    except InputError as error:
        fault = str(error)
    networks = {name: (str(address.ip), str(address.netmask)) for name, address in interfaces().items()}
    return Probe(os.uname().nodename, host.versions(), mpi, fault, len(visible_cores()), free, needs, networks)


def main() -> int:
    """Print the line."""
    sys.stdout.write(f"{MARK}{json.dumps(asdict(probe()))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
