"""Two ranks of one thread each against one rank that has both cores: what a second rank is worth on one machine.

    python -m benchmarks.cores

Samples/s of all workers together; whole jobs run in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = {"mlp": 2000, "cnn": 80, "lstm": 200}


def rate(model: str, ranks: int, threads: int) -> float:
    """Samples/s of all workers."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        options = ["--model", model, "--threads", str(threads), "--train-steps", str(STEPS[model] // ranks)]
        # Bound to one core, a rank could not use its second thread.
        command = ["mpirun", "--bind-to", "none", "-np", str(ranks), sys.executable, "-m", "mpitrain", *options]
        command += ["--eval-every", "0", "--run-dir", str(run_dir)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=300)
        return float(json.loads((run_dir / "summary.json").read_text())["samples_per_second"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="cnn,lstm,mlp")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print(f"samples/s in all, medians of {arguments.repeats} interleaved repeats\n")
    head = "2 ranks, 1 thread each | 1 rank, 2 threads | 1 rank, 1 thread"
    print(f"| model | {head} | over 1 rank with both cores | over the better single rank |")
    print("|---|---:|---:|---:|---:|---:|")
    for model in arguments.models.split(","):
        shapes = ((2, 1), (1, 2), (1, 1))
        found = [[rate(model, *shape) for shape in shapes] for _ in range(arguments.repeats)]
        middle = [statistics.median(column) for column in zip(*found, strict=True)]
        speed_up = statistics.median(two / both for two, both, _ in found)
        honest = statistics.median(two / max(both, one) for two, both, one in found)
        rates = " | ".join(f"{m:,.0f}" for m in middle)
        print(f"| {model} | {rates} | {speed_up:.2f} | **{honest:.2f}** |", flush=True)


if __name__ == "__main__":
    main()
