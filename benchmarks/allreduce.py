"""All-reduce on two ranks against the same program with the exchange left out, the update still applied on each rank.

    mpirun -np 2 python -m benchmarks.allreduce

All ways run in the same processes on the same model, in turn, so that what the machine does meanwhile hits each.
"""

from __future__ import annotations

import argparse
import statistics
import time

from mpi4py import MPI

from benchmarks.exchanging import open_allreduce
from benchmarks.table import Row, show
from mpitrain.cluster.job import start_mpi, stop_mpi
from mpitrain.cluster.world import World
from mpitrain.config import RunConfig
from mpitrain.exchange.allreduce.backends import AllReduceChoice
from mpitrain.exchange.tickets import Ticket
from mpitrain.parameters.step import Batch
from mpitrain.training.garbage import short_collections
from mpitrain.training.loop import train
from mpitrain.training.setup import Setup, choose, defaults_of, prepare

STEPS = {"mlp": 600, "cnn": 40, "lstm": 120}
WAYS = (AllReduceChoice("shared", True), AllReduceChoice("shared"), AllReduceChoice("mpi"))


def measure(setup: Setup, world: World, everyone: World, steps: int, way: AllReduceChoice) -> float:
    """Samples/s of each worker over ``steps`` steps on ``world``, after ten that do not count."""
    about, feed = setup.description, setup.feed
    assert setup.step is not None
    assert feed is not None
    exchange = open_allreduce(setup, world, steps + 10, way)
    started = 0.0

    def begin(ticket: Ticket) -> Batch:
        nonlocal started
        if ticket.number == 10:
            everyone.comm.Barrier()
            started = time.perf_counter()
        return feed.batch(ticket)

    with short_collections():  # as a run has them: a pause of one rank would be one of all
        train(exchange, setup.step, begin, lambda totals: None)
    everyone.comm.Barrier()
    seconds = time.perf_counter() - started
    exchange.close()
    return steps * about.batch_size / seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="cnn,lstm,mlp")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    everyone = start_mpi()
    if everyone.size < 2:
        parser.error("there is nothing to exchange on one rank: mpirun -np 2 python -m benchmarks.allreduce")
    alone = World.of(MPI.COMM_SELF)
    rows = []
    for model in arguments.models.split(","):
        config = defaults_of(RunConfig(model=model, threads=1))
        setup = prepare(everyone, config, tuple(range(everyone.size)))
        choose(setup, setup.full_batch)
        kinds = [(everyone, way) for way in WAYS] + [(alone, AllReduceChoice())]
        found: list[list[float]] = [[] for _ in kinds]
        for repeat in range(arguments.repeats):
            for k in [(k + repeat) % len(kinds) for k in range(len(kinds))]:
                found[k].append(measure(setup, kinds[k][0], everyone, STEPS[model], kinds[k][1]))
        *together, apart = found
        for way, rates in zip(WAYS, together, strict=True):
            ratios = [a / b for a, b in zip(rates, apart, strict=True)]
            rows.append(Row(f"{model}: {way.name}", statistics.median(rates), statistics.median(apart), ratios))
    if everyone.rank == 0:
        print(show(f"all-reduce, {everyone.size} ranks, one thread each", "all-reduce", "no exchange", rows))
    stop_mpi()


if __name__ == "__main__":
    main()
