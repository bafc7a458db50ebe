"""Running the launcher: signals become SIGUSR1, so that an interrupted run saves; the exit code is the run's own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType

from mpitrain.cluster.signals import follow_parent, name_of
from mpitrain.launching.command import Command
from mpitrain.reporting.stream import say

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_ENDS = 10.0  # seconds that a launcher has to end a job at once


def run(command: Command, environment: Mapping[str, str] = os.environ) -> int:
    """Run a launcher to its end.

    The first SIGINT, SIGTERM, SIGHUP or SIGUSR1 is passed on as SIGUSR1, which asks the ranks for an agreed end; the
    second ends the job at once.

    Returns:
        Its exit code; 128 and the signal's number where one killed it.
    """
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        with suppress(ProcessLookupError):
            if len(asked) == 1:
                job.send_signal(signal.SIGUSR1)
                say(f"mpitrain: {name_of(number)}: the run is asked to end; once more ends it at once", to_errors=True)
            else:
                job.send_signal(signal.SIGTERM)

    before = {number: signal.getsignal(number) for number in _ASKING}
    # Out of the terminal's reach: else Ctrl-C would kill the ranks beside asking them.
    job = subprocess.Popen(
        command.words,
        env={**environment, **command.variables},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=follow_parent,
    )
    for number in _ASKING:
        if before[number] != signal.SIG_IGN:  # as under nohup
            signal.signal(number, ask)
    try:
        code = _wait(job, asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _wait(job: subprocess.Popen[bytes], asked: list[int]) -> int:
    since: float | None = None
    while True:
        try:
            return job.wait(1.0)
        except subprocess.TimeoutExpired:
            if len(asked) > 1:
                since = since or time.monotonic()
                if time.monotonic() > since + _ENDS:
                    with suppress(ProcessLookupError):
                        os.killpg(job.pid, signal.SIGKILL)
