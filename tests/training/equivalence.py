"""The same 20 updates of the mlp in three worlds at once: one process, two workers, two servers with two workers.

mpirun -np 7 python -m tests.training.equivalence FOLDER
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np

import mpitrain
from mpitrain.cluster.job import start_mpi

BATCH = 60
WORLDS = {"one": ([0], "allreduce"), "allreduce": ([1, 2], "allreduce"), "ps-sync": ([3, 4, 5, 6], "ps-sync")}


def main(folder: Path) -> None:
    everyone = start_mpi()
    for name, (ranks, mode) in WORLDS.items():
        world = everyone.split(ranks)
        if world is None:
            continue
        trainer = mpitrain.Trainer(
            "mlp",
            world=world,
            mode=mode,
            servers=2,
            dataset="mnist-sample",
            train_steps=20,
            batch_size=BATCH if mode == "allreduce" and world.size == 1 else BATCH // 2,
            optimizer="sgd",
            learning_rate=0.1,
            jit="off",
            threads=1,
            run_dir=str(folder / name),
        )
        trainer.fit()
    if everyone.rank == 0:
        (folder / "spread").write_bytes(pickle.dumps(spread(20)))
    everyone.meet("the end")


def spread(steps: int) -> tuple[list[np.ndarray], float]:
    """The initial weights, and the largest change that five reorderings of each batch make to those of one process."""
    from mpitrain.config import RunConfig
    from mpitrain.data.mnist import load
    from mpitrain.exchange.tickets import TicketBook
    from mpitrain.parameters.layout import aligned_zeros
    from mpitrain.parameters.step import Batch
    from mpitrain.training.feed import Feed
    from mpitrain.training.keras_setup import make_step

    config = RunConfig(model="mlp", optimizer="sgd", learning_rate=0.1, dataset="mnist-sample", batch_size=BATCH)
    dataset = load("mnist-sample")
    feed = Feed(dataset, config.seed, BATCH)
    step = make_step(config, None, dataset, 0)[0]
    initial = step.initial_parameters()
    ends = []
    for order in range(6):
        random = np.random.default_rng(order)
        parameters = aligned_zeros(step.layout.size, step.layout.dtype)
        parameters[:] = initial
        for ticket, _ in zip(TicketBook(len(dataset.train), BATCH, None, steps), range(steps), strict=False):
            inputs, targets = feed.batch(ticket)
            places = random.permutation(ticket.size) if order else np.arange(ticket.size)
            gradient = step.run(parameters, Batch(inputs[places], targets[places])).gradient
            new = aligned_zeros(step.layout.size, step.layout.dtype)
            new[:] = parameters - np.float32(0.1) * gradient
            parameters = new
        ends.append(parameters)
    widest = max(float(np.abs(end - ends[0]).max()) for end in ends[1:])
    return [view.copy() for view in step.layout.views(initial)], widest


if __name__ == "__main__":
    main(Path(sys.argv[1]))
