"""What all-reduce adds to a step for 2, 4, 8 and 16 ranks on one host, where a step is a set sleep and takes no core.

    python -m benchmarks.growth

Beside it stands what the bytes alone take: each rank writes the vector once into memory, or sends 2 (N - 1) / N of it,
at the speed of a copy, on as many cores as there are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np

from mpitrain.cluster.cores import visible_cores
from mpitrain.cluster.job import start_mpi, stop_mpi
from mpitrain.cluster.roles import assign
from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce.backends import AllReduceChoice
from mpitrain.exchange.base import Plan
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.registry import open_exchange
from mpitrain.exchange.tickets import TicketBook
from mpitrain.parameters.layout import Layout, aligned_zeros
from mpitrain.parameters.optimizers import OptimizerSpec, make_optimizer
from mpitrain.parameters.step import StepResult

ELEMENTS, SLEEP, STEPS = 79510, 0.05, 40
WAYS = (AllReduceChoice("shared", True), AllReduceChoice("ring", True), AllReduceChoice("mpi"))


def overhead(world: World, way: AllReduceChoice) -> float:
    """Seconds of a step beyond its sleep, the update included, on the slowest rank; the median."""
    layout = Layout.of([("vector", (ELEMENTS,))])
    book = TicketBook(10**6, world.size, None, STEPS)
    spec = OptimizerSpec("sgd")
    exchange = open_exchange(
        Policy("allreduce", world.size),
        world,
        assign("allreduce", world.size, 0),
        layout,
        [slice(0, layout.size)],
        aligned_zeros(layout.size),
        lambda part: make_optimizer(spec, layout, part.start, part.stop),
        Plan(book, book.cuts(None, "steps"), lambda version: 0.0, 3),
        lambda version, why: False,
        way,
    )
    assert not hasattr(exchange, "serve")
    result = StepResult(aligned_zeros(layout.size), 1.0, np.array([0.0, 1.0, 1.0]))
    times = []
    ticket = exchange.start()
    while ticket is not None:
        begin = time.perf_counter()
        time.sleep(SLEEP)
        ticket = exchange.finish(result)
        times.append(time.perf_counter() - begin - SLEEP)
    exchange.close()
    return float(max(world.gather_all(statistics.median(times), "benchmark")))


def on_ranks() -> None:
    """What one rank does."""
    world = start_mpi()
    found = {way.backend: overhead(world, way) for way in WAYS}
    if world.rank == 0:
        print(json.dumps(found))
    stop_mpi()


def copy_speed() -> float:
    """Bytes/s of a copy of the vector by one process."""
    source, target = aligned_zeros(ELEMENTS), aligned_zeros(ELEMENTS)
    best = 1.0
    for _ in range(50):
        begin = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begin)
    return source.nbytes / best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4,8,16")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        on_ranks()
        return
    speed, cores = copy_speed(), len(visible_cores())
    print(f"{ELEMENTS:,} floats, {SLEEP * 1e3:.0f} ms of sleep, {cores} cores: ms that a step takes beyond its sleep\n")
    names = [way.backend for way in WAYS]
    print(f"| ranks | {' | '.join(names)} | N·M bytes copied | 2 (N-1)·M |\n|---:|{'---:|' * (len(names) + 2)}")
    for ranks in map(int, arguments.ranks.split(",")):
        command = ["mpirun", "-np", str(ranks), sys.executable, "-m", "benchmarks.growth", "--inside"]
        ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=os.environ)
        found = json.loads(ended.stdout.splitlines()[-1])
        data = 4 * ELEMENTS / speed / min(cores, ranks)
        bounds = [ranks * data, 2 * (ranks - 1) * data]
        cells = [f"{1e3 * seconds:.2f}" for seconds in (*(found[name] for name in names), *bounds)]
        print(f"| {ranks} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
