"""Many short trainings in a row, modes and numbers of ranks at random: none may hang, none may fail.

    python -m benchmarks.soak --runs 200

Each is a job of its own under mpirun with a gradient step in numpy; what it ends with is checked on every rank.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from mpitrain.exchange.registry import MODES

ROOT = Path(__file__).resolve().parents[1]
STEPS, DEADLINE = 20, 180.0  # updates; seconds after which a run counts as hung


def main() -> None:
    """Launch the runs, or be one rank of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=7, help="at most")
    parser.add_argument("--seed", type=int, help="of what is drawn; a new one by default")
    parser.add_argument("--be", nargs=3, metavar=("MODE", "SERVERS", "JITTER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be:
        train(arguments.be[0], int(arguments.be[1]), float(arguments.be[2]))
    elif not soak(arguments.runs, arguments.ranks, arguments.seed or random.SystemRandom().randrange(10**9)):
        sys.exit(1)


def soak(runs: int, most: int, seed: int) -> bool:
    """Whether ``runs`` jobs of up to ``most`` ranks all ended as they should."""
    print(f"seed {seed}", flush=True)
    draw = random.Random(seed)
    seconds, failures, modes = [], 0, Counter[str]()
    for number in range(runs):
        ranks = draw.randint(1, most)
        mode = draw.choice([name for name in MODES if name == "allreduce" or ranks > 1])
        servers = draw.randint(1, min(3, ranks - 1)) if mode != "allreduce" else 0
        jitter = draw.choice((0.0, 0.002, 0.01))
        modes[mode] += 1
        started = time.monotonic()
        wrong = run(ranks, [mode, str(servers), str(jitter)])
        seconds.append(time.monotonic() - started)
        if wrong:
            failures += 1
            what = f"{mode}, {ranks} ranks, {servers} servers, {jitter} s of jitter"
            print(f"run {number} ({what}) failed after {seconds[-1]:.1f} s: {wrong}", flush=True)
    drawn = ", ".join(f"{count} {mode}" for mode, count in sorted(modes.items()))
    print(
        f"{runs} runs of {STEPS} steps on 1 to {most} ranks ({drawn}): {failures} failed; "
        f"seconds a run: median {statistics.median(seconds):.1f}, longest {max(seconds):.1f}"
    )
    return not failures


def run(ranks: int, which: list[str]) -> str:
    """What was wrong with one job; empty for nothing."""
    command = ["mpirun", "-np", str(ranks), sys.executable, "-m", "benchmarks.soak", "--be", *which]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        try:
            said, _ = job.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            job.kill()
            return f"it hung\n{job.communicate()[0]}"
    well = said.count("well\n") == ranks
    return "" if well and not job.returncode else f"exit code {job.returncode}\n{said}"


def train(mode: str, servers: int, jitter: float) -> None:
    """One rank of one run."""
    from mpitrain.cluster.hooks import install_hooks
    from mpitrain.cluster.job import start_mpi, stop_mpi
    from tests.support.numpy_run import Case, run_case

    install_hooks()
    world = start_mpi()
    case = Case("soak", mode, world.size, servers, steps=STEPS, jitter=jitter)
    seen = run_case(case, world)
    assert seen["version"] == STEPS, seen["version"]
    stop_mpi()
    print("well", flush=True)


if __name__ == "__main__":
    main()
