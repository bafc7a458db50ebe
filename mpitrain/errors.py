"""What can go wrong, and the exit code that each kind of failure leaves the process with."""

from __future__ import annotations

from enum import IntEnum

from mpitrain.reporting.stream import say


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


class HostError(InputError):
    """Something about a host that its own ranks alone see, before ranks can talk: the first of them speaks."""


class DivergedError(MpitrainError):
    """A gradient or a loss became NaN or infinite: the sentence names the step and the rank."""

    exit_code = ExitCode.DIVERGED


class OutOfMemoryError(MpitrainError):
    """An allocation failed: the sentence names what was being done, and the memory that there is."""

    exit_code = ExitCode.OUT_OF_MEMORY


class AgreementError(MpitrainError):
    """The ranks no longer hold the same parameters: the sentence names the rank that differs."""

    exit_code = ExitCode.OWN_FAILURE


class PeerLostError(MpitrainError):
    """A peer's process is gone, or cannot be reached."""

    exit_code = ExitCode.PEER_FAILED


def complain(reason: str) -> None:
    """Print one sentence to standard error."""
    say(f"mpitrain: error: {reason}", to_errors=True)
