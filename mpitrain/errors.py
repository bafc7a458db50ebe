"""What can go wrong, and the exit code that each kind of failure leaves the process with."""

from __future__ import annotations

import sys
from contextlib import suppress
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of ``python -m mpitrain``; ``docs/exit-codes.md`` says what each launcher makes of them."""

    DONE = 0
    BAD_INPUT = 2
    DIVERGED = 65
    OWN_FAILURE = 70
    PEER_FAILED = 71
    STALLED = 72
    OUT_OF_MEMORY = 73
    PREEMPTED = 75


class MpitrainError(Exception):
    """A failure that is told to the user in one sentence, without a traceback."""

    exit_code: ExitCode = ExitCode.OWN_FAILURE


class InputError(MpitrainError):
    """The user asked for something that cannot be done: the sentence says what is wrong, where, and what to do."""

    exit_code = ExitCode.BAD_INPUT


class DivergedError(MpitrainError):
    """A gradient or a loss became NaN or infinite: the sentence names the step and the rank."""

    exit_code = ExitCode.DIVERGED


class AgreementError(MpitrainError):
    """The ranks no longer hold the same parameters: the sentence names the rank that differs."""

    exit_code = ExitCode.OWN_FAILURE


class PeerLostError(MpitrainError):
    """A peer's process is gone, or cannot be reached."""

    exit_code = ExitCode.PEER_FAILED


def complain(reason: str) -> None:
    """Print one sentence to standard error."""
    with suppress(OSError, ValueError):  # a terminal that has gone away must not change how a run ends
        print(f"mpitrain: error: {reason}", file=sys.stderr, flush=True)
