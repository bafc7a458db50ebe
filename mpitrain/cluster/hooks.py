"""A rank that fails ends the run: without this the others would wait for it for ever.

``python -m mpitrain`` does not pass through mpi4py's own runner, which does the same for plain scripts.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from types import TracebackType

from mpitrain.cluster import leaving, watchdog
from mpitrain.cluster.launcher import read_launch
from mpitrain.cluster.memory import is_memory_error, peak_and_node
from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.waiting import now
from mpitrain.errors import ExitCode, MpitrainError, PeerLostError, complain
from mpitrain.reporting.stream import say

_PATIENCE = 2.0  # seconds in which the watchdog notices that an error of MPI's is another rank's end
_LAST_WORDS = 5.0  # seconds for the watchdog to tell the others and write the files


def install_hooks() -> None:
    """Make an uncaught exception in any thread print its traceback with the rank, and end all ranks.

    ``MPITRAIN_NO_EXCEPTHOOK=1`` leaves Python's own hooks in place.
    """
    if os.environ.get("MPITRAIN_NO_EXCEPTHOOK") != "1":
        sys.excepthook = _fail
        threading.excepthook = _fail_in_thread


def let_peers_speak(error: BaseException) -> None:
    """Wait whether ``error`` turns out to be another rank's end: then the watchdog ends this process in here."""
    if watchdog.current is not None and isinstance(error, PeerLostError | MPI.Exception):
        watchdog.current.give_way(_PATIENCE)


def _fail_in_thread(args: threading.ExceptHookArgs) -> None:
    if not issubclass(args.exc_type, SystemExit):
        _fail(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)


def _fail(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    let_peers_speak(error)
    dog = watchdog.current
    who = dog.me.name if dog is not None else "mpitrain"
    where = f"'{now.operation}' at step {now.step}"
    if isinstance(error, MpitrainError):
        code, cause = error.exit_code, f"{who}: {error}"
    else:
        text = "".join(traceback.format_exception(kind, error, trace))
        say(f"mpitrain: {who} failed in {where}:\n{text.rstrip()}", to_errors=True)
        code, cause = ExitCode.OWN_FAILURE, f"{who} failed in {where} with {kind.__name__}: {error}"
    if is_memory_error(error):
        code, cause = ExitCode.OUT_OF_MEMORY, f"{who} ran out of memory in {where}: {peak_and_node()}"
    if code is not ExitCode.OWN_FAILURE or isinstance(error, MpitrainError):
        complain(cause)
    if dog is not None:
        dog.fail(code, cause, _LAST_WORDS)
    leaving.leave(code, read_launch())
