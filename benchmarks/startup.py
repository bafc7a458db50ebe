"""Seconds from typing mpirun to the first step of all workers among three ranks, on warm caches.

python -m benchmarks.startup
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mpitrain.training.run import FIRST_STEP

STEPS = 60
"""Enough that without synchronisation the first worker does not take them all."""


def seconds_to_first_step(model: str, mode: str) -> float:
    """From the launch until the last worker begins its first step, as the ranks' logs tell."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        options = ["--model", model, "--mode", mode, "--train-steps", str(STEPS), "--eval-every", "0"]
        command = ["mpirun", "-np", "3", sys.executable, "-m", "mpitrain", *options, "--run-dir", str(run_dir)]
        begin = time.time()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=300)
        lines = [line for log in run_dir.glob("rank.*/log.txt") for line in log.read_text().splitlines()]
        firsts = [float(line.rsplit(" ", 1)[1]) for line in lines if FIRST_STEP in line]
        workers = json.loads((run_dir / "summary.json").read_text())["workers"]
        if len(firsts) != workers:
            raise RuntimeError(f"{len(firsts)} of {workers} workers had a step to do: raise STEPS")
        return max(firsts) - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="cnn,lstm,mlp")
    parser.add_argument("--modes", default="allreduce,ps-async")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print("| model | mode | seconds from mpirun to the first step (min-max) |")
    print("|---|---|---:|")
    for model in arguments.models.split(","):
        for mode in arguments.modes.split(","):
            found = [seconds_to_first_step(model, mode) for _ in range(arguments.repeats)]
            print(
                f"| {model} | {mode} | **{statistics.median(found):.1f}** ({min(found):.1f}-{max(found):.1f}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
