"""Fetching the files of a data set from public mirrors over HTTPS."""

from __future__ import annotations

import io
import queue
import threading
import time
from collections.abc import Iterable, Iterator

from pooch import HTTPDownloader

from mpitrain.data.idx import unpack
from mpitrain.data.sources import UnavailableError
from mpitrain.errors import InputError

STALL = 30.0
"""Seconds for which a download may stand still; a slow one that moves is never cut off."""


def ask(mirrors: Iterable[str], name: str, within: float) -> Iterator[tuple[str, str]]:
    """Ask all mirrors at once for the file ``name``, and yield each with why it is of no use, or ``""``.

    Mirrors come in the order of their answers, silent ones last. A name server that does not answer blocks a
    thread for longer than any timeout that can be set here, so each mirror is asked in a thread of its own,
    which is left behind when the time is over.

    Args:
        mirrors: URLs of folders.
        name: a file that every mirror should have, without ``.gz``.
        within: seconds for all mirrors together.
    """
    deadline = time.monotonic() + within
    answers: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def ask_one(mirror: str) -> None:
        try:
            found = HTTPDownloader(timeout=2 * within)(f"{mirror}/{name}.gz", None, None, check_only=True)
            answers.put((mirror, "" if found else f"does not have {name}.gz"))
        except OSError as error:  # every exception of requests is one
            answers.put((mirror, f"cannot be reached, {type(error).__name__}"))

    silent = dict.fromkeys(mirrors)
    for mirror in silent:
        threading.Thread(target=ask_one, args=(mirror,), daemon=True).start()
    while silent:
        try:
            mirror, fault = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        del silent[mirror]
        yield mirror, fault
    yield from ((mirror, f"does not answer within {within:g} s") for mirror in silent)


def download(mirror: str, names: Iterable[str], connect_within: float) -> Iterator[tuple[str, bytes]]:
    """Yield each of the files ``names`` of ``mirror`` with its unpacked bytes, not yet checked.

    Raises:
        UnavailableError: a file is not there, the connection breaks, or stands still for ``STALL`` seconds.
    """
    get = HTTPDownloader(timeout=(connect_within, STALL), chunk_size=1 << 18)
    for name in names:
        packed = io.BytesIO()
        try:
            get(f"{mirror}/{name}.gz", packed, None)
            yield name, unpack(packed.getvalue(), f"{name}.gz")
        except OSError as error:
            raise UnavailableError(f"{name}.gz did not arrive whole, {type(error).__name__}") from error
        except InputError as error:
            raise UnavailableError(f"{name}.gz is no whole gzip stream") from error
