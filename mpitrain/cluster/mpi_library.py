"""The MPI library that mpi4py loads: whose it is, which version, and where it lies. Nothing here starts MPI."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mpitrain.cluster.mpi import MPI

OPENMPI, MPICH = "openmpi", "mpich"


@dataclass(frozen=True)
class Library:
    """An MPI library.

    Args:
        text: what ``MPI_Get_library_version`` says.
        path: of the library's file; empty where it is not known.
    """

    text: str
    path: str = ""

    @classmethod
    def loaded(cls) -> Library:
        """The one in this process."""
        with open("/proc/self/maps") as maps:
            mapped = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libmpi" in line}
        # libmpi_mpifh.so and the like come with some of them.
        own = sorted(path for path in mapped if re.fullmatch(r"libmpi(ch)?\.so[.\d]*", Path(path).name))
        return cls(MPI.Get_library_version().rstrip("\0"), own[0] if own else "")

    @property
    def form(self) -> str:
        """``openmpi`` or ``mpich``: whose launcher and host files it takes. MPICH's relatives count as MPICH."""
        return OPENMPI if self.text.startswith("Open MPI") else MPICH

    @cached_property
    def version(self) -> tuple[int, ...]:
        """As numbers; empty where the text has none."""
        found = re.search(r"\d+(\.\d+)+", self.text.split("\n")[0])
        return tuple(int(part) for part in found[0].split(".")) if found else ()

    @property
    def name(self) -> str:
        """Vendor and version for people, ``Open MPI 5.0.11``."""
        vendor = re.split(r"[:,\n]|\bv?\d", self.text)[0].removesuffix("Version").replace("(R)", "").strip()
        return " ".join([vendor, ".".join(map(str, self.version))]).strip()
