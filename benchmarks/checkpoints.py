"""What saving costs: the pace of the cnn with a checkpoint every ten seconds, and the memory of a large model's.

    python -m benchmarks.checkpoints [--repeats 3] [--steps 300]

Runs with and without checkpoints take turns. The large model has a hundred million parameters (``benchmarks.large``):
it is trained for two updates without saving, with a checkpoint at the end, and for two more that go on from it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.table import Row, show
from tests.support.mpi import environment, mpirun

MODES = {"allreduce": 2, "ps-sync": 3, "ps-async": 3}
"""Ranks of each mode: two workers."""


def main() -> None:
    """Measure, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300, help="of the cnn: half a minute and more")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mpitrain-checkpoints-", dir="/var/tmp") as folder:
        cost(Path(folder), arguments.repeats, arguments.steps)
        memory(Path(folder))


def cost(folder: Path, repeats: int, steps: int) -> None:
    """The pace of the cnn with and without."""
    rows, pauses = [], []
    for mode, ranks in MODES.items():
        paces: dict[str, list[float]] = defaultdict(list)
        for _ in range(repeats):
            for every in ("10s", "0"):
                updates = str(steps * (2 if mode == "ps-async" else 1))
                told = train(folder, ranks, mode, "cnn", updates, "--eval-every", "0", "--checkpoint-every", every)
                paces[every].append(told["samples_per_second_per_worker"])
                if every != "0":
                    pauses.append((mode, told["saved"], told["train_seconds"]))
        ratios = [one / other for one, other in zip(paces["10s"], paces["0"], strict=True)]
        rows.append(Row(mode, statistics.median(paces["10s"]), statistics.median(paces["0"]), ratios))
    print(show("cnn, 2 workers", "every 10 s", "never", rows))
    for mode, saved, seconds in pauses:
        paused = f"{saved['pause_seconds']:.2f} s of {seconds:.0f} s"
        print(f"{mode}: {saved['checkpoints']} checkpoints of {saved['nbytes'] / 1e6:.0f} MB, paused {paused}")


def memory(folder: Path) -> None:
    """The most memory that the ranks of the large model held, with and without saving."""
    print("\n| mode | role | without saving | with a checkpoint | resumed | checkpoint | paused |")
    print("|---|---|---:|---:|---:|---:|---:|")
    large = "benchmarks.large:model"
    for mode, ranks in (("allreduce", 2), ("ps-sync", 4)):
        servers = ("--servers", "2") if mode == "ps-sync" else ()
        common = (*servers, "--batch-size", "10", "--eval-every", "0", "--keep", "1")
        plain = train(folder, ranks, mode, large, "2", *common, "--checkpoint-every", "0")
        saved = train(folder, ranks, mode, large, "2", *common, "--checkpoint-every", "2", keep=True)
        again = train(folder, ranks, mode, large, "4", *common, "--checkpoint-every", "0", "--resume", "auto")
        for role, most in plain["peak_memory_by_role"].items():
            each = (run["peak_memory_by_role"][role] for run in (saved, again))
            sizes = " | ".join(f"{size / 1e9:.2f} GB" for size in (most, *each, saved["saved"]["nbytes"]))
            print(f"| {mode} | {role} | {sizes} | {saved['saved']['pause_seconds']:.1f} s |", flush=True)


def train(folder: Path, ranks: int, mode: str, model: str, steps: str, *options: str, keep: bool = False) -> Any:
    """One run; what its summary says."""
    run = folder / "run"
    command = [mpirun(), "-np", str(ranks), sys.executable, "-m", "mpitrain", "--mode", mode, "--model", model]
    command += ["--train-steps", steps, "--threads", "1", "--run-dir", str(run), *options]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if ended.returncode:
        sys.exit(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    told = json.loads((run / "summary.json").read_text())
    if not keep:
        shutil.rmtree(run)
    return told


if __name__ == "__main__":
    main()
