"""How the pushes that servers take in a second grow with workers and servers.

    python -m benchmarks.growth [--plot docs/growth.svg]

One launch of fifteen ranks, which makes a world for each number of servers and workers. A worker's step is a sleep, as
if each had cores of its own, so what bends the curves is what servers and workers do for a push, on the cores of this
machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mpitrain.parameters.layout import Layout
from mpitrain.parameters.optimizers import OptimizerSpec

SERVERS, WORKERS = (1, 2, 3), (1, 2, 3, 4, 6, 8, 10, 12)
MODELS = {"mlp": (79_510, 0.005), "cnn": (3_274_634, 0.04)}
"""Parameters, and seconds of a step, about those of these models."""

ADAM = OptimizerSpec("adam")
Rates = dict[tuple[int, int], float]


def main() -> None:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--mode", default="ps-async", help="ps-async or ps-sync")
    parser.add_argument("--plot", type=Path, default=None, help="a picture of the curves")
    arguments = parser.parse_args()
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        measure(arguments.seconds, arguments.mode, arguments.plot)
        return
    ranks = max(SERVERS) + max(WORKERS)
    command = ["mpirun", "-np", str(ranks), sys.executable, "-m", "benchmarks.growth", *sys.argv[1:]]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def measure(seconds: float, mode: str, plot: Path | None) -> None:
    """Every number of servers and workers, on this rank; the first rank prints."""
    from mpitrain.cluster.hooks import install_hooks
    from mpitrain.cluster.job import start_mpi, stop_mpi
    from mpitrain.exchange.servers.bench import time_pushes

    install_hooks()
    everyone = start_mpi()
    found: dict[str, Rates] = {}
    for model, (elements, step) in MODELS.items():
        layout = Layout.of([("vector", (elements,))])
        rates: Rates = {}
        for servers in SERVERS:
            for workers in WORKERS:
                world = everyone.split(range(servers + workers))
                if world is not None:
                    # Fewer where servers are slow: the first few pushes tell.
                    first, _ = time_pushes(world, servers, layout, mode, "shared", ADAM, 4 * workers, step)
                    pushes = workers * max(4, int(4 * seconds / first))
                    taken, _ = time_pushes(world, servers, layout, mode, "shared", ADAM, pushes, step)
                    rates[servers, workers] = pushes / taken
                    world.free()
                everyone.meet("next world")
        found[model] = rates
        if everyone.rank == 0:
            print(table(model, rates), flush=True)
    if everyone.rank == 0 and plot is not None:
        draw(found, plot)
    stop_mpi()


def table(model: str, rates: Rates) -> str:
    """Pushes a second by workers and servers, beside what workers would make of which none ever waits."""
    elements, step = MODELS[model]
    lines = [
        f"{model}: {elements:,} parameters, steps of {1e3 * step:.0f} ms; pushes/s",
        "",
        "| workers | nobody waits | " + " | ".join(f"{k} server{'s' * (k > 1)}" for k in SERVERS) + " |",
        "|---:" * (2 + len(SERVERS)) + "|",
    ]
    for workers in WORKERS:
        cells = [f"{rates[k, workers]:,.0f}" for k in SERVERS]
        lines.append(f"| {workers} | {workers / step:,.0f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(found: dict[str, Rates], path: Path) -> None:
    """The curves, one picture for each model."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "growth"
    figure, axes = pyplot.subplots(1, len(found), figsize=(9, 3.6), layout="constrained")
    for axis, (model, rates) in zip(axes, found.items(), strict=True):
        elements, step = MODELS[model]
        axis.plot(WORKERS, [w / step for w in WORKERS], "--", color="0.6", label="nobody waits")
        for servers in SERVERS:
            rate: Sequence[float] = [rates[servers, workers] for workers in WORKERS]
            axis.plot(WORKERS, rate, "o-", markersize=3, label=f"{servers} server{'s' * (servers > 1)}")
        axis.set_title(f"{elements:,} parameters, steps of {1e3 * step:.0f} ms", fontsize=10)
        axis.set_ylim(0, 1.25 * max(rates.values()))
        axis.set_xlabel("workers")
        axis.set_ylabel("pushes/s")
        axis.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
