"""What the watchdog costs a step: its thread running against standing still, and the notes that it reads.

    mpirun -np 2 python -m benchmarks.watchdog

Both train the mlp, whose step is the shortest, in the same processes, in short blocks that alternate, so that what the
machine does meanwhile hits both. The watchdog beats as often as it does by default.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from pathlib import Path

from benchmarks.exchanging import open_allreduce
from mpitrain.cluster import watchdog
from mpitrain.cluster.job import start_mpi, stop_mpi
from mpitrain.cluster.peers import Limits
from mpitrain.cluster.waiting import now, waiting
from mpitrain.config import RunConfig
from mpitrain.exchange.allreduce.backends import AllReduceChoice
from mpitrain.training.loop import train
from mpitrain.training.setup import choose, defaults_of, prepare

BLOCK = 2.0  # seconds, two beats: in each block the watchdog does its usual work
WITHOUT = Limits(3600.0, 3600.0)


class Pause:
    """Holds the watchdog's thread between two blocks of its work."""

    def __init__(self, dog: watchdog.Watchdog) -> None:
        self._dog, self._awake = dog, threading.Event()

    def __enter__(self) -> None:
        self._awake.clear()
        # Asleep on a lock, the thread neither beats nor takes the interpreter's lock.
        self._dog._post(self._sleep)

    def __exit__(self, *error: object) -> None:
        self._awake.set()

    def _sleep(self) -> None:
        self._awake.wait()


def busy(thread: threading.Thread) -> float:
    """Seconds of processor time that a thread has used."""
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9


def notes(repeats: int = 200_000) -> tuple[float, float]:
    """Microseconds of one ``now.work`` and of one ``waiting`` block, less an empty loop."""
    started = time.perf_counter()
    for _ in range(repeats):
        pass
    empty = time.perf_counter() - started
    started = time.perf_counter()
    for step in range(repeats):
        now.work("computing a gradient", step)
    working = time.perf_counter() - started - empty
    started = time.perf_counter()
    for step in range(repeats):
        with waiting("all-reduce", step, ()):
            pass
    return 1e6 * working / repeats, 1e6 * (time.perf_counter() - started - empty) / repeats


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20, help="of each kind")
    arguments = parser.parse_args()
    world = start_mpi(*WITHOUT)
    dog = watchdog.current
    assert dog is not None
    config = defaults_of(RunConfig(model="mlp", threads=1, jit="off", allreduce="mpi"))
    setup = prepare(world, config, tuple(range(world.size)))
    choose(setup, setup.full_batch)
    pause = Pause(dog)
    blocks: list[list[float]] = [[], []]
    shares: list[float] = []

    def run(steps: int) -> float:
        """Seconds of a step."""
        assert setup.step is not None
        assert setup.feed is not None
        exchange = open_allreduce(setup, world, steps, AllReduceChoice())
        world.meet("before a block")
        started = time.perf_counter()
        train(exchange, setup.step, setup.feed.batch, lambda totals: None)
        seconds = (time.perf_counter() - started) / steps
        exchange.close()
        return seconds

    steps = max(world.gather_all(int(BLOCK / run(200)), "choosing a length"))
    for block in range(arguments.blocks):
        for kind in (0, 1) if block % 2 else (1, 0):
            if kind:
                used, started = busy(dog), time.monotonic()
                blocks[kind].append(run(steps))
                shares.append((busy(dog) - used) / (time.monotonic() - started))
            else:
                with pause:
                    blocks[kind].append(run(steps))
    without, with_it = map(statistics.median, blocks)
    ratios = [b / a for a, b in zip(*blocks, strict=True)]
    working, waits = notes()
    if world.rank == 0:
        low, high = statistics.quantiles(ratios, n=4)[::2]
        print(f"{world.size} ranks, mlp, {2 * arguments.blocks} blocks of {steps} steps in turn")
        print(f"a step: {1e6 * with_it:.1f} us with the watchdog, {1e6 * without:.1f} us without (medians)")
        print(f"with / without: **{statistics.median(ratios):.4f}** (quartiles {low:.4f} to {high:.4f})")
        print(f"the thread's own share of a core: **{statistics.mean(shares):.4f}**")
        # A step of all-reduce notes its work once and waits twice.
        print(f"notes: {working:.2f} us a piece of work, {waits:.2f} us a wait: {working + 2 * waits:.2f} us a step")
    stop_mpi()


if __name__ == "__main__":
    main()
