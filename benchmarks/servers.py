"""One parameter server and two workers, against the TensorFlow 1 job that its users come from.

    python -m benchmarks.servers

Both train the same model on the same data with one thread a worker; whole jobs run in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.table import Row, show

STEPS = {"mlp": 4000, "cnn": 240}


def ours(model: str, mode: str) -> float:
    """Samples/s per worker of mpitrain."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        steps = STEPS[model] // (2 if mode == "ps-sync" else 1)
        options = ["--model", model, "--mode", mode, "--train-steps", str(steps), "--eval-every", "0", "--threads", "1"]
        command = ["mpirun", "-np", "3", sys.executable, "-m", "mpitrain", *options, "--run-dir", str(run_dir)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=300)
        return float(json.loads((run_dir / "summary.json").read_text())["samples_per_second_per_worker"])


def theirs(model: str, sync: bool) -> float:
    """Samples/s per worker of the TensorFlow 1 job: the mean of its two workers."""
    ports = [free_port() for _ in range(3)]
    hosts = [f"127.0.0.1:{port}" for port in ports]
    steps = STEPS[model] // (2 if sync else 1)
    flags = ["--ps_hosts", hosts[0], "--worker_hosts", ",".join(hosts[1:]), "--model", model]
    flags += ["--issync", str(int(sync)), "--train_steps", str(steps)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}

    def start(job: str, index: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.peers.tf1_ps", "--job_name", job, "--task_index", str(index)]
        return subprocess.Popen(
            command + flags, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )

    server, *workers = start("ps", 0), start("worker", 0), start("worker", 1)
    try:
        told = [json.loads(worker.communicate(timeout=300)[0].splitlines()[-1]) for worker in workers]
    finally:
        for process in (server, *workers):
            process.kill()
            process.wait()
    return statistics.mean(t["samples_per_second_per_worker"] for t in told)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="cnn,mlp")
    parser.add_argument("--modes", default="ps-async,ps-sync")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    for mode in arguments.modes.split(","):
        rows = []
        for model in arguments.models.split(","):
            a, b = [], []
            for repeat in range(arguments.repeats):
                # In turn, and in another order each time: nobody always finds the machine as the other left it.
                if repeat % 2:
                    b.append(theirs(model, mode == "ps-sync"))
                a.append(ours(model, mode))
                if not repeat % 2:
                    b.append(theirs(model, mode == "ps-sync"))
            ratios = [x / y for x, y in zip(a, b, strict=True)]
            rows.append(Row(model, statistics.median(a), statistics.median(b), ratios))
        print(show(f"{mode}, one server and two workers", "mpitrain", "TensorFlow 1", rows), flush=True)


if __name__ == "__main__":
    main()
