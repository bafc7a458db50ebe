"""Pipes that close, streams that were never open, terminals that go away: the run goes on or ends cleanly."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mpitrain.errors import ExitCode
from tests.support.mpi import Ended, environment, mpirun, run

TRAIN = "--model mlp --dataset mnist-sample --batch-size 32 --jit off --log-every 1 --run-dir run"
LAUNCHERS = pytest.mark.parametrize("ranks", [1, 2], ids=["one-process", "mpirun"])
LONG = 10**7


def command(ranks: int, steps: int) -> list[str]:
    launcher = [mpirun(), "-np", str(ranks)] if ranks > 1 else []
    return [*launcher, sys.executable, "-m", "mpitrain", *TRAIN.split(), "--train-steps", str(steps)]


def status(folder: Path) -> str:
    """What the summary says, after a look at whether all files are whole."""
    for line in (folder / "run" / "history.jsonl").read_text().splitlines():
        json.loads(line)
    assert not list((folder / "run").rglob("*.tmp*"))
    found: str = json.loads((folder / "run" / "summary.json").read_text())["status"]
    return found


def shell(text: str, ranks: int, folder: Path) -> Ended:
    """Run ``text`` in a shell, with TRAIN for the command."""
    train = " ".join(command(ranks, 60))
    return run(["bash", "-c", f"set -o pipefail; {text.replace('TRAIN', train)}"], 200, environment(), folder)


@LAUNCHERS
@pytest.mark.parametrize("redirection", ["| head -1", "<&-", ">&-", "2>&-"])
def test_the_run_goes_on_without_its_streams(redirection: str, ranks: int, tmp_path: Path) -> None:
    ended = shell(f"TRAIN {redirection}", ranks, tmp_path).check()
    assert status(tmp_path) == "complete"
    assert (tmp_path / "run" / "model.keras").exists()
    assert "Traceback" not in ended.err + ended.out
    assert "BrokenPipe" not in ended.err
    assert ("mpitrain: " in ended.out) == (redirection != ">&-")


def test_one_process_needs_no_stream_at_all(tmp_path: Path) -> None:
    shell("TRAIN <&- >&- 2>&-", 1, tmp_path).check()
    assert status(tmp_path) == "complete"


def until(condition: Callable[[], bool], seconds: float = 150.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def on_terminal(ranks: int, folder: Path, launcher: tuple[str, ...] = ()) -> int:
    """Start a long run on a terminal, close that in mid-run, wait for the end of all processes; the exit code."""
    reader, writer = pty.openpty()
    # The child leads the session whose terminal this is, as a login shell or `ssh -t host command` does.
    takes = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execvp(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", takes, *launcher, *command(ranks, LONG)],
        env=environment(),
        cwd=folder,
        stdin=writer,
        stdout=writer,
        stderr=writer,
        start_new_session=True,
    )
    os.close(writer)
    try:
        history = folder / "run" / "history.jsonl"
        os.set_blocking(reader, False)

        def drained() -> bool:
            with contextlib.suppress(OSError):  # nothing is there yet, or nohup has turned the output away
                os.read(reader, 1 << 16)
            return history.exists() and history.stat().st_size > 0

        until(drained)
        everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        os.close(reader)
        if launcher:
            time.sleep(3)
            before = history.stat().st_size
            until(lambda: history.stat().st_size > before)
            everyone[0].send_signal(signal.SIGUSR1)
        until(lambda: all(map(ended, everyone)), 60)
        return process.wait(10)
    finally:
        for left in [*psutil.Process(process.pid).children(recursive=True), process] if process.poll() is None else []:
            left.kill()


def test_a_terminal_that_goes_away_ends_one_process_in_good_order(tmp_path: Path) -> None:
    assert on_terminal(1, tmp_path) == ExitCode.PREEMPTED
    assert status(tmp_path) == "preempted"


def test_a_terminal_that_goes_away_ends_a_job(tmp_path: Path) -> None:
    assert on_terminal(2, tmp_path) != 0
    assert status(tmp_path) == "interrupted"


def test_with_nohup_one_process_goes_on(tmp_path: Path) -> None:
    assert on_terminal(1, tmp_path, ("nohup",)) == ExitCode.PREEMPTED
    assert status(tmp_path) == "preempted"
