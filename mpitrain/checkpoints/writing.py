"""Writing one rank's file: on a thread where the slice is small enough to be copied, else at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpitrain.checkpoints.manifest import StoredFile
from mpitrain.checkpoints.slices import PIECE, Sink, Slice, Stretch

_LOOK = 0.01  # seconds between two looks at a file that is being written


@dataclass(frozen=True)
class Written:
    """What became of a file: ``stored`` is None where ``reason`` says why it could not be written."""

    name: str
    stored: StoredFile | None
    reason: str = ""


def reason_of(error: Exception) -> str:
    """Why something could not be written, in a few words."""
    return getattr(error, "strerror", None) or str(error)


def write_file(path: Path, pieces: Iterable[np.ndarray], stretches: Iterable[Stretch] = ()) -> Written:
    """Write a new file from uint8 ``pieces``, all of which are taken whatever happens."""
    sink, reason, sha256 = None, "", ""
    try:
        sink = Sink(path)
    except OSError as error:
        reason = reason_of(error)
    for piece in pieces:
        try:
            if sink is not None and not reason:
                sink.write(piece)
        except OSError as error:
            reason = reason_of(error)
    try:
        if sink is not None and not reason:
            sha256 = sink.close()
    except OSError as error:
        reason = reason_of(error)
    if sink is None or reason:
        if sink is not None:
            with suppress(OSError):
                sink.abandon()
        return Written(path.name, None, reason)
    return Written(path.name, StoredFile(sink.nbytes, sha256, tuple(stretches)))


class BackgroundWriter:
    """Writes one slice after another; memory beside them: one copy of a slice, of at most ``PIECE`` bytes."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)
        self._thread: threading.Thread | None = None
        self._written: Written | None = None
        self._pieces = 0

    def write(self, content: Slice, path: Path) -> None:
        """Begin to write; returns when ``content`` may change again."""
        if content.nbytes > PIECE:
            self._run(path, content.pieces(), content)
            return
        if self._buffer.size < content.nbytes:
            self._buffer = np.empty(content.nbytes, np.uint8)
        copy = self._buffer[: content.nbytes]
        content.copy(copy)
        self._thread = threading.Thread(
            target=self._run, args=(path, [copy], content), name="mpitrain writer", daemon=True
        )
        self._thread.start()

    def take(self) -> Written | None:
        """What became of the last slice, once, when it is known."""
        if self._thread is not None and self._thread.is_alive():
            return None
        self._thread = None
        written, self._written = self._written, None
        return written

    def wait(self, moved: Callable[[], None]) -> None:
        """Return when that is known; ``moved`` is called whenever something has been written meanwhile."""
        seen = self._pieces
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(_LOOK)
            if self._pieces != seen:
                seen = self._pieces
                moved()

    def _run(self, path: Path, pieces: Iterable[np.ndarray], content: Slice) -> None:
        def counted() -> Iterable[np.ndarray]:
            for piece in pieces:
                yield piece
                self._pieces += 1

        self._written = write_file(path, counted(), content.stretches)
