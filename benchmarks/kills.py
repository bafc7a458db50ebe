"""SIGKILL to all processes of a job at random moments, while it saves each update: what is left must resume.

    python -m benchmarks.kills [--kills 100] [--modes allreduce,ps-sync,ps-async] [--seed N]

Each job has three ranks and a gradient step in numpy. It is killed within a second after its first update, and goes on
for three updates on two to four ranks. Exits with 1 where a job could not go on, or had lost more than the update that
was saved last and the one whose save was under way.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mpitrain.checkpoints.find import checkpoints_of, find
from mpitrain.errors import InputError
from mpitrain.exchange.registry import MODES
from tests.faults.launch import TOKEN, alive
from tests.support.mpi import environment, mpirun

RANKS, MORE, FARTHEST = 3, 3, 1.0  # ranks; updates after the kill; seconds until it
DEADLINE = 60.0  # seconds for a job


@dataclass(frozen=True)
class Killed:
    """What came of one job.

    Args:
        seconds: from the first update to the kill.
        reached: the last update that the history knows of.
        saved: the update that the run went on from; 0 for the beginning.
        wrong: what was not as it must be; empty for nothing.
    """

    seconds: float
    reached: int = 0
    saved: int = 0
    wrong: str = ""


def main() -> None:
    """Kill, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="for each mode")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--seed", type=int, help="of the moments; a new one by default")
    parser.add_argument("--side-by-side", type=int, default=2, help="jobs at a time")
    arguments = parser.parse_args()
    seed = arguments.seed or random.SystemRandom().randrange(10**9)
    print(f"seed {seed}", flush=True)
    bad = 0
    print("| mode | kills | updates when killed: median (most) | lost: median (most) | not resumed |")
    print("|---|---:|---:|---:|---:|")
    for mode in arguments.modes.split(","):
        draws = [random.Random(f"{seed} {mode} {number}") for number in range(arguments.kills)]
        with ThreadPoolExecutor(arguments.side_by_side) as pool:
            seen = list(pool.map(lambda draw, mode=mode: kill(mode, draw), draws))
        for each in seen:
            if each.wrong:
                bad += 1
                print(f"killed after {each.seconds:.3f} s: {each.wrong}", file=sys.stderr, flush=True)
        reached, lost = [s.reached for s in seen], [s.reached - s.saved for s in seen]
        told = f"{statistics.median(reached):.0f} ({max(reached)}) | {statistics.median(lost):.0f} ({max(lost)})"
        print(f"| `{mode}` | {len(seen)} | {told} | {sum(bool(s.wrong) for s in seen)} |", flush=True)
    sys.exit(1 if bad else 0)


def kill(mode: str, draw: random.Random) -> Killed:
    """Start a job, kill it, look at what it has left, and let it go on."""
    seconds, ranks = draw.uniform(0, FARTHEST), draw.choice((2, 3, 4))
    with tempfile.TemporaryDirectory(prefix="mpitrain-kills-") as name:
        run = Path(name) / "run"
        options = ["--mode", mode, "--run-dir", str(run), "--eval-every", "0", "--log-every", "1"]
        options += ["--checkpoint-every", "1", "--optimizer", "adam"]
        token = secrets.token_hex(8)
        env = environment({TOKEN: token, "TMPDIR": name})
        with _start(RANKS, [*options, "--train-steps", "100000"], env) as job:
            history = run / "history.jsonl"
            deadline = time.monotonic() + DEADLINE
            while not (history.exists() and history.stat().st_size) and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(seconds)
            for pid in alive(token):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            job.communicate()
        reached = _steps(history)[-1] if history.exists() and _steps(history) else 0
        try:
            found = find("auto", str(run), lambda _: None)
        except InputError as error:
            return Killed(seconds, reached, wrong=str(error))
        saved = 0 if found is None else found.manifest.step
        with _start(ranks, [*options, "--train-steps", str(saved + MORE), "--resume", "auto"], env) as job:
            try:
                said, _ = job.communicate(timeout=DEADLINE)
            except subprocess.TimeoutExpired:
                job.kill()
                said = f"it hung\n{job.communicate()[0]}"
        return Killed(seconds, reached, saved, _judge(run, job.returncode, said, reached, saved))


def _judge(run: Path, code: int, said: str, reached: int, saved: int) -> str:
    if code:
        return f"exit code {code} when it went on from {saved}\n{said}"
    summary, steps = json.loads((run / "summary.json").read_text()), _steps(run / "history.jsonl")
    wrong = []
    if reached - saved > 2:
        wrong.append(f"{reached - saved} updates were lost")
    if (summary["status"], summary["updates"]) != ("complete", saved + MORE):
        wrong.append(f"the summary says {summary['status']} after {summary['updates']} updates, not {saved + MORE}")
    if summary["resumed"] != [saved] * bool(saved):
        wrong.append(f"it went on from {summary['resumed']}, not {saved}")
    if steps != sorted(steps) or steps[-1] != saved + MORE:
        wrong.append(f"the history has {steps[-5:]}")
    if left := [p.name for p in checkpoints_of(run).path.iterdir() if p.suffix]:
        wrong.append(f"left behind: {left}")
    return "; ".join(wrong)


def _steps(history: Path) -> list[int]:
    """Of all whole lines."""
    lines = history.read_bytes().split(b"\n")[:-1]
    return [json.loads(line)["step"] for line in lines]


def _start(ranks: int, options: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    command = [mpirun(), "-np", str(ranks), sys.executable, "-m", "tests.training.numpy_train", *options]
    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


if __name__ == "__main__":
    main()
