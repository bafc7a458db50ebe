"""The ``mpirun`` that belongs to an MPI library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from mpitrain.cluster.mpi_library import MPICH, OPENMPI, Library
from mpitrain.errors import InputError
from mpitrain.launching.command import Launcher

_NAMES = {OPENMPI: ("mpirun", "mpirun.openmpi"), MPICH: ("mpiexec", "mpiexec.hydra", "mpiexec.mpich")}
_SECONDS = 20.0  # on a slow network file system


def find_launcher(library: Library, path: str | None = None) -> Launcher:
    """The launcher of the library: beside the interpreter, beside the library, or on PATH.

    Args:
        library: that mpi4py loads.
        path: instead of PATH.

    Raises:
        InputError: where there is none.
    """
    others = []
    for candidate in _candidates(library, os.environ.get("PATH", "") if path is None else path):
        found = identify(candidate)
        if found is not None and fits(found, library):
            return found
        others.append(f"{candidate} is {describe(found)}")
    named = f" ({'; '.join(others)})" if others else ""
    raise InputError(
        f"no mpirun of {library.name}, which this Python's mpi4py loads, stands beside the interpreter, beside "
        f"{library.path or 'the library'} or on PATH{named}: install it, or put its folder first on PATH"
    )


def on_path(environment: Mapping[str, str] = os.environ) -> list[Launcher | str]:
    """What ``mpirun`` and ``mpiexec`` on PATH are; the path alone of one that does not tell."""
    found: dict[str, Launcher | str] = {}
    for name in ("mpirun", "mpiexec"):
        if path := shutil.which(name, path=environment.get("PATH", "")):
            found.setdefault(path, identify(path) or path)
    return list(found.values())


def fits(launcher: Launcher, library: Library) -> bool:
    """Whether it starts processes of the library as one world: the vendor decides, and for Open MPI the version.

    A newer Open MPI starts an older one's processes, and the other way round, only by luck.
    """
    if launcher.form != library.form:
        return False
    return library.form == MPICH or launcher.version[:1] == library.version[:1]


def identify(path: str) -> Launcher | None:
    """The launcher at ``path``, by what it says of its version; None where that is no known launcher."""
    try:
        said = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    if match := re.search(r"\(Open MPI\)\s+v?(\d+(?:\.\d+)*)", said):
        return Launcher(path, OPENMPI, _numbers(match[1]))
    if match := re.search(r"HYDRA build details:\s+Version:\s+(\d+(?:\.\d+)*)", said):
        return Launcher(path, MPICH, _numbers(match[1]))
    if match := re.search(r"Intel\(R\) MPI Library .*Version (\d+(?:\.\d+)*)", said):
        return Launcher(path, MPICH, _numbers(match[1]))
    return None


def describe(launcher: Launcher | None) -> str:
    """For people."""
    if launcher is None:
        return "no known launcher"
    vendor = "Open MPI" if launcher.form == OPENMPI else "MPICH"
    return f"{vendor} {'.'.join(map(str, launcher.version))}"


def _candidates(library: Library, path: str) -> Iterator[str]:
    folders = [Path(sys.executable).parent, Path(sys.prefix) / "bin"]
    if library.path:
        places = [Path(library.path).parents, Path(library.path).resolve().parents]
        # /usr/lib/x86_64-linux-gnu/openmpi/lib/libmpi.so.40 belongs to /usr/bin/mpirun.
        folders += [parent / "bin" for parents in places for parent in list(parents)[1:5]]
    folders += [Path(folder) for folder in path.split(os.pathsep) if folder]
    seen: set[Path] = set()
    for folder in folders:
        for name in _NAMES[library.form]:
            file = folder / name
            if file not in seen and os.access(file, os.X_OK) and file.is_file():
                seen.add(file)
                yield str(file)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def main() -> int:
    """For the batch scripts: the form of this Python's MPI, and on a second line the path of its launcher, if any."""
    library = Library.loaded()
    try:
        launcher = find_launcher(library).path
    except InputError:
        launcher = ""
    sys.stdout.write(f"{library.form}\n{launcher}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
