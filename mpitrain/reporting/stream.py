"""The streams that a run talks to: whether somebody watches, and what happens when nobody does any more.

A reader that has seen enough (``| head -1``), a stream that was closed (``>&-``) or a terminal that went away must not
change how a run ends, so nothing here ever raises: all that is printed goes through this module.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import IO, TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 120
"""Columns where the stream is no terminal and says nothing of its width."""


def say(text: str, to_errors: bool = False) -> None:
    """Print one text, by default to standard output."""
    QuietStream(sys.stderr if to_errors else sys.stdout).write(f"{text}\n")


def open_closed_streams() -> None:
    """Let standard streams that were closed before the start lead nowhere.

    Else the next file that is opened gets their number, and with it all that C libraries print.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


class QuietStream(io.TextIOBase):
    """Writes through to ``stream`` until that fails, and swallows everything from then on."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._terminal = on_terminal(stream)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream below: rich draws with ASCII where it cannot do better."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether a person watches (see ``on_terminal``)."""
        return self._terminal

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """Write and flush, or do nothing when nobody listens any more."""
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except UnicodeEncodeError:
                self.write(text.encode("ascii", "replace").decode())
            except BlockingIOError:
                pass  # a reader that is slow, not gone: this text is lost, the next may get through
            except (OSError, ValueError):  # ValueError: the stream was closed on this side
                self._fall_quiet(self._stream)
        return len(text)

    def _fall_quiet(self, stream: TextIO) -> None:
        self._stream = None
        # What the stream still buffers would fail again when the interpreter flushes it at exit, with a
        # message and exit code 120: its descriptor now leads nowhere.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nowhere, stream.fileno())
            finally:
                os.close(nowhere)


def on_terminal(stream: TextIO | None) -> bool:
    """Whether ``stream`` ends on a terminal that somebody looks at.

    Open MPI gives every rank a pseudo-terminal, also when the output of ``mpirun`` goes to a file: only its
    size, which is zero columns then, tells the two apart.
    """
    try:
        return stream is not None and stream.isatty() and os.get_terminal_size(stream.fileno()).columns > 0
    except (OSError, ValueError):
        return False


def console_on(stream: TextIO | None) -> Console:
    """A rich console on ``stream``: colours on a terminal, plain text of 120 columns elsewhere."""
    from rich.console import Console

    quiet = QuietStream(stream)
    terminal = quiet.isatty()
    width = None if terminal else PLAIN_WIDTH
    return Console(
        file=cast(IO[str], quiet),
        force_terminal=terminal,
        width=width,
        markup=False,
        highlight=False,
        emoji=False,
    )
