"""Signals, noticed at once: Python's own handlers wait until a call into MPI or TensorFlow has come back.

The C handler writes the signal's number to a socket that the watchdog listens on. Python's handlers are there only so
that the default action does not happen; a signal for which the user's script has a handler of its own, or which is
ignored (nohup), is left alone.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGINT, SIGUSR1 = signal.SIGINT, signal.SIGUSR1
NOTICED = (signal.SIGTERM, SIGINT, signal.SIGHUP, SIGUSR1)
"""The signals that may end a run."""

_PR_SET_PDEATHSIG = 1


def notice(to: socket.socket, idle: Callable[[], bool]) -> None:
    """Let the numbers of the signals in ``NOTICED`` be written to ``to``; only the main thread can, else nothing is.

    Args:
        to: a non-blocking socket.
        idle: whether no run is under way; then a signal does what it did before.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    signal.set_wakeup_fd(to.fileno(), warn_on_full_buffer=False)
    for number in NOTICED:
        before = signal.getsignal(number)
        if before in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _handler(before, idle))


def follow_parent() -> None:
    """Have the kernel send SIGTERM to this process when the one that started it is gone: a launcher that was killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _handler(before: Any, idle: Callable[[], bool]) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        if not idle():
            return
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, before)
            signal.raise_signal(number)

    return handle


def name_of(number: int) -> str:
    """SIGTERM and the like."""
    return signal.Signals(number).name
