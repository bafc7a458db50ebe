"""What slow workers cost under each policy of the servers, with a numpy step that takes a set time.

    python -m benchmarks.straggler

One server and four workers; each step is 5 ms of sleep, so that the machine's cores do not matter. Three runs of each
policy in turn: undisturbed; one worker takes 50 ms more for each step; every worker does so for one step in twenty.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict

import numpy as np

from mpitrain.parameters.step import Batch, OnReady, StepResult
from mpitrain.training.delay import Delay, Sleeper
from tests.support import numpy_run
from tests.support.numpy_step import SoftmaxStep

WORKERS, SECONDS, DELAY, RARELY, UPDATES = 4, 0.005, 0.05, 0.05, 120

POLICIES: dict[str, tuple[str, dict[str, int]]] = {
    "ps-sync": ("ps-sync", {}),
    "ps-sync --backup-workers 1": ("ps-sync", {"backups": 1}),
    "ps-async": ("ps-async", {}),
    **{f"ps-async --staleness-bound {s}": ("ps-async", {"bound": s}) for s in (0, 2, 8, 32)},
}
DISTURBANCES = ("none", "one", "each")


class Disturbed(SoftmaxStep):
    """A step before which this rank may sleep."""

    sleep = Sleeper(None, 0, 0)

    def run(self, parameters: np.ndarray, batch: Batch, on_ready: OnReady | None = None) -> StepResult:
        type(self).sleep()
        return super().run(parameters, batch, on_ready)


def main() -> None:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        measure(arguments.repeats)
        return
    command = ["mpirun", "-np", str(WORKERS + 1), sys.executable, "-m", "benchmarks.straggler"]
    subprocess.run([*command, "--repeats", str(arguments.repeats)], check=True, stdin=subprocess.DEVNULL)


def measure(repeats: int) -> None:
    """Every policy, on this rank; rank 1 may be the straggler, and the last rank prints."""
    from mpitrain.cluster.hooks import install_hooks
    from mpitrain.cluster.job import start_mpi, stop_mpi

    install_hooks()
    world = start_mpi()
    numpy_run.SoftmaxStep = Disturbed  # type: ignore[misc]
    speaks = world.rank == WORKERS
    if speaks:
        print(
            "| policy | undisturbed | one slow: the others | then: mean staleness (max), dropped | each slow at times |"
        )
        print("|---|---:|---:|---:|---:|", flush=True)
    for name, (mode, options) in POLICIES.items():
        paces: dict[str, list[float]] = defaultdict(list)
        told = ""
        for disturbance in DISTURBANCES * repeats:
            delays = {"none": None, "one": Delay(1, DELAY), "each": Delay(world.rank, DELAY, RARELY)}
            Disturbed.sleep = Sleeper(delays[disturbance], world.rank, len(paces["each"]))
            # An asynchronous update is one gradient, where a synchronous one is nearly all workers'.
            steps = UPDATES * (WORKERS if mode == "ps-async" else 1)
            sleeps = dict.fromkeys(range(1, WORKERS + 1), SECONDS)
            case = numpy_run.Case(name, mode, world.size, 1, steps=steps, slow=sleeps, every=None, **options)  # type: ignore[arg-type]
            world.meet("next run")
            started = time.perf_counter()
            seen = numpy_run.run_case(case, world)
            everyone = world.gather_all(sum(seen["pushed"].values()), "comparing")
            paces[disturbance].append(statistics.mean(everyone[2:]) / (time.perf_counter() - started))
            if disturbance == "one" and not seen["serves"]:
                told = f"{seen['staleness_sum'] / seen['applied']:.1f} (max {seen['staleness_max']}), "
                told += str(int(seen["dropped"].sum()))
        if speaks:
            alone, one, each = (statistics.median(paces[kind]) for kind in DISTURBANCES)
            row = (f"{alone:.0f}", f"{one:.0f} ({one / alone:.2f})", told, f"{each:.0f} ({each / alone:.2f})")
            print(f"| `{name}` | {' | '.join(row)} |", flush=True)
    stop_mpi()


if __name__ == "__main__":
    main()
