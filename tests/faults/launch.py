"""Starting one cell of the matrix, watching its end, and judging it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitrain.checkpoints.find import AUTO, find
from tests.faults.matrix import RANKS, SAVED, SERVERS, STALL, START, STEPS, VARIANTS, Cell
from tests.support.mpi import environment, mpirun

HUNG = 60.0
"""Seconds after which a job is killed."""

TOKEN = "FAULTS_TOKEN"
"""An environment variable, by whose value the processes of a job are found."""

_SETTLED = 1.0  # seconds in which the kernel takes away what has ended


@dataclass(frozen=True)
class Seen:
    """What came of a job.

    Args:
        code: mpirun's; None where it had to be killed.
        err: standard error.
        seconds: from the fault until nothing of the job was left.
        summary: of the run; empty where there is none.
        model: the parameters in the end.
        left: processes and files that outlived the job.
        saved: the step of the newest whole checkpoint; 0 for none.
    """

    code: int | None
    err: str
    seconds: float
    summary: Mapping[str, Any]
    model: bytes
    left: tuple[str, ...]
    saved: int = 0


def suffer(cell: Cell) -> Seen:
    """Run a training in which the cell's rank suffers its fault."""
    return train(cell.mode, cell.fault, cell.moment, cell.rank, cell.seconds)


def train(
    mode: str,
    fault: str = "none",
    moment: str = "none",
    rank: int = 0,
    seconds: float = 0.0,
    extra: Mapping[str, str] | None = None,
    hung: float = HUNG,
    more: Sequence[str] = (),
) -> Seen:
    """Run a training, with a fault or without one; ``more`` options of the command line come last."""
    token = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="mpitrain-faults-") as name:
        folder = Path(name)
        private = folder / "tmp"
        private.mkdir()
        options = [*VARIANTS.get(mode, ("--mode", mode)), "--servers", str(SERVERS)]
        options += ["--train-steps", str(STEPS), "--eval-every", "10"]
        options += [
            "--stall-timeout",
            f"{STALL:g}",
            "--start-timeout",
            f"{START:g}",
            "--run-dir",
            str(folder / "run"),
            *(("--checkpoint-every", str(SAVED)) if moment == "checkpoint" else ()),
            *more,
        ]
        program = ["-m", "tests.faults.program", fault, moment, str(rank), str(folder), f"{seconds}", *options]
        env = environment({"TMPDIR": str(private), TOKEN: token, "PYTHONUNBUFFERED": "1", **(extra or {})})
        with (folder / "err").open("wb") as err, (folder / "out").open("wb") as out:
            command = [mpirun(), "-np", str(RANKS), sys.executable, *program]
            job = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        code, stuck = _ended(job, hung, token)
        gone = _until(lambda: not alive(token), _SETTLED)
        ended = time.time()
        left = [f"process {pid}" for pid in alive(token)] if not gone else []
        for pid in alive(token):
            os.kill(pid, signal.SIGKILL)
        left += [f"in the temporary folder: {path.relative_to(private)}" for path in private.rglob("*")]
        shared = {name for note in folder.glob("shm.*") for name in note.read_text().split()}
        left += [name for name in sorted(shared) if Path(name).exists()]
        trace, told, model = folder / "suffered", folder / "run" / "summary.json", folder / "run" / "model.keras"
        return Seen(
            code,
            (folder / "err").read_text(errors="replace") + stuck,
            ended - float(trace.read_text()) if trace.exists() else 0.0,
            json.loads(told.read_text()) if told.exists() else {},
            model.read_bytes() if model.exists() else b"",
            tuple(left),
            found.manifest.step if (found := find(AUTO, str(folder / "run"), lambda _: None)) else 0,
        )


def judge(cell: Cell, seen: Seen) -> list[str]:
    """What was wrong; empty for nothing."""
    wrong: list[str] = []

    def must(holds: bool, what: str) -> None:
        if not holds:
            wrong.append(what)

    host = os.uname().nodename
    lines = [line for line in seen.err.splitlines() if line.strip()]
    must(seen.code is not None, "it hung")
    must(seen.code in (None, *cell.codes), f"mpirun ended with {seen.code} instead of {cell.codes[0]}")
    must(cell.promised is None or seen.seconds <= cell.promised, f"it took {seen.seconds:.1f} s to end")
    for words in cell.told(host):
        must(words in seen.err, f"nobody said {words!r}")
    must(seen.summary.get("status") == cell.status, f"the summary says {seen.summary.get('status')}")
    if cell.status in ("failed", "stalled"):
        must(seen.summary.get("rank") in (cell.rank, None), f"the summary names rank {seen.summary.get('rank')}")
        must(
            cell.agreed or f"rank {cell.rank}" in (seen.summary.get("cause") or ""), "the summary's cause names no rank"
        )
    if cell.traceback:
        must(lines[:1] != [] and lines[0].startswith(f"mpitrain: rank {cell.rank} on {host} failed in "), "not first")
        must(lines[1:2] != [] and lines[1].startswith("Traceback"), "the traceback is not the first thing told")
    must(cell.traceback or "Traceback" not in seen.err, "there is a traceback")
    # What a launcher ends has a last line on each rank.
    spoken = [line for line in lines if line.startswith("mpitrain: error: ") and " was ended " not in line]
    must(len(spoken) <= 1, "several ranks spoke")
    must(cell.moment != "checkpoint" or seen.saved >= SAVED, f"step {seen.saved} is what is saved")
    must(not seen.left, f"left behind: {', '.join(seen.left)}")
    return wrong


def _ended(job: subprocess.Popen[bytes], hung: float, token: str) -> tuple[int | None, str]:
    """mpirun's exit code; or None, and what its processes were doing when they were killed."""
    try:
        return job.wait(hung), ""
    except subprocess.TimeoutExpired:
        stuck = "".join(f"--- stuck: {_describe(pid)}\n" for pid in [job.pid, *alive(token)])
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        return None, stuck


def _describe(pid: int) -> str:
    told = [f"process {pid}"]
    for name in ("cmdline", "wchan", "status", "stat"):
        with contextlib.suppress(OSError):
            told.append((Path("/proc") / str(pid) / name).read_text().replace("\0", " ").replace("\n", "; ")[:300])
    return ", ".join(told)


def alive(token: str) -> list[int]:
    """Processes with the token in their environment, which all of a job's inherit."""
    found = []
    mark = f"{TOKEN}={token}".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
