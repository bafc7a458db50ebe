"""A rank that fails ends the run: without this the others would wait for it for ever.

``python -m mpitrain`` does not pass through mpi4py's own runner, which does the same for plain scripts.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from types import TracebackType

from mpitrain.cluster.mpi import MPI
from mpitrain.errors import ExitCode, MpitrainError


def install_hooks() -> None:
    """Make an uncaught exception in any thread print its traceback with the rank, and abort all ranks.

    ``MPITRAIN_NO_EXCEPTHOOK=1`` leaves Python's own hooks in place.
    """
    if os.environ.get("MPITRAIN_NO_EXCEPTHOOK") != "1":
        sys.excepthook = _fail
        threading.excepthook = lambda args: _fail(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)


def _fail(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    running = MPI.Is_initialized() and not MPI.Is_finalized()
    who = f"rank {MPI.COMM_WORLD.rank} on {os.uname().nodename}" if running else "mpitrain"
    if isinstance(error, MpitrainError):
        code = error.exit_code
        print(f"mpitrain: error: {who}: {error}", file=sys.stderr, flush=True)
    else:
        code = ExitCode.OWN_FAILURE
        text = "".join(traceback.format_exception(kind, error, trace))
        print(f"mpitrain: {who} failed:\n{text}", file=sys.stderr, end="", flush=True)
    if running and MPI.COMM_WORLD.size > 1:
        MPI.COMM_WORLD.Abort(int(code))
    os._exit(int(code))
