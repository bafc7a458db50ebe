"""Runs that are cut, and go on in another world or mode: one job, in which every case has a world of its own.

mpirun -np 4 python -m tests.training.resumed FOLDER
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import mpitrain
from mpitrain.checkpoints.find import checkpoints_of
from mpitrain.cluster.agreement import AgreedExit
from mpitrain.cluster.job import start_mpi
from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.world import World
from mpitrain.exchange.tickets import Ticket
from mpitrain.parameters.step import Batch, OnReady, StepResult
from mpitrain.training import run as training_run
from mpitrain.training.output import Output
from tests.support import numpy_job
from tests.support.numpy_job import PixelStep

SIZE, EPOCHS, CUT = 100, 1.6, 14
"""Samples of a worker's batch, passes over the 5,500 samples, and the batch of a worker at which a run is cut."""


@dataclass(frozen=True)
class Part:
    """A run, or a part of one."""

    mode: str
    ranks: int
    servers: int = 1
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def workers(self) -> int:
        return self.ranks - (self.servers if self.mode != "allreduce" else 0)

    def __str__(self) -> str:
        of = f"{self.servers}+{self.workers}" if self.mode != "allreduce" else f"{self.ranks}"
        return ",".join([f"{self.mode}-{of}", *(f"{name}={value}" for name, value in self.options.items())])


@dataclass(frozen=True)
class Case:
    first: Part
    second: Part
    optimizer: str = "adam"
    blind: bool = False
    """Whether rank 0 alone sees the run directory."""

    def __str__(self) -> str:
        return f"{self.first}-{self.second}-{self.optimizer}{'-blind' * self.blind}"

    @property
    def equal(self) -> bool:
        """Whether it goes on as it was, and repeats bit for bit."""
        return self.first == self.second and self.first.mode != "ps-async" and self.first is not BACKED

    @property
    def equivalent(self) -> bool:
        """Whether the same global batches come, added up by others."""
        parts = self.first, self.second
        fixed = not {BACKED, ELASTIC} & set(parts) and "ps-async" not in (self.first.mode, self.second.mode)
        return fixed and self.first.workers == self.second.workers


ALL2, ALL3, ALL4 = (Part("allreduce", ranks) for ranks in (2, 3, 4))
OWNED = Part("allreduce", 3, options={"allreduce": "shared", "shard_optimizer": "on"})
SYNC3, SYNC4, SYNC4_2 = Part("ps-sync", 3), Part("ps-sync", 4), Part("ps-sync", 4, 2)
RING = Part("allreduce", 3, options={"allreduce": "ring", "shard_optimizer": "on", "wire_dtype": "bfloat16"})
BACKED = Part("ps-sync", 4, options={"backup_workers": 1})
ASYNC3, ASYNC4_2 = Part("ps-async", 3), Part("ps-async", 4, 2)
LOCAL = Part("allreduce", 2, options={"local_steps": 2})
ELASTIC = Part("ps-sync", 3, options={"elastic": 0.3, "local_steps": 2})
ADAPTIVE = Part("ps-async", 3, options={"delay_compensation": 1.0, "adaptive_compensation": True, "soft_quorum": 3})
PIPED = Part("ps-async", 3, options={"pipeline": True})

CASES = [
    Case(ALL3, ALL3, "sgd"),
    Case(OWNED, OWNED),
    Case(SYNC4_2, SYNC4_2),
    Case(RING, RING),
    Case(ALL2, SYNC3),
    Case(SYNC3, ALL2),
    Case(OWNED, ASYNC4_2),
    Case(SYNC4_2, ASYNC3),
    Case(ASYNC3, ALL4),
    Case(ASYNC4_2, SYNC4),
    Case(ASYNC3, ASYNC4_2, "sgd"),
    Case(SYNC3, SYNC4_2),
    Case(ALL4, ALL2),
    Case(BACKED, ALL3),
    Case(LOCAL, LOCAL),
    Case(ELASTIC, ELASTIC, blind=True),
    Case(ELASTIC, ALL3),
    Case(ADAPTIVE, ASYNC4_2),
    Case(PIPED, PIPED),
    Case(OWNED, OWNED, blind=True),
    Case(SYNC4_2, ALL2, blind=True),
]


BRIGHT = np.float32(255)


class RandomStep(PixelStep):
    """Loses some inputs, as dropout does, by a random state of each worker's own; it learns faster than its parent."""

    def __init__(self) -> None:
        super().__init__()
        self.carried = [np.array([MPI.COMM_WORLD.rank, 0], np.int64)]

    def run(self, parameters: np.ndarray, batch: Batch, on_ready: OnReady | None = None) -> StepResult:
        kept = np.random.default_rng(self.carried[0]).random(len(batch.targets)) > 0.2
        self.carried = [self.carried[0] + [0, 1]]
        inputs = np.asarray(batch.inputs) * BRIGHT * kept.reshape(-1, 1, 1, 1).astype(np.float32)
        return super().run(parameters, Batch(inputs, batch.targets), on_ready)

    def evaluate(self, parameters: np.ndarray, batch: Batch) -> np.ndarray:
        return super().evaluate(parameters, Batch(np.asarray(batch.inputs) * BRIGHT, batch.targets))


class Watch:
    """Notes which samples this rank trains on, and asks for an early end after so many batches."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        """Those of the training steps of this rank since they were last cleared."""
        self.until: int | None = None
        self.blind = False
        seen = Output._open_log

        def open_log(output: Output, token: str) -> logging.Handler:
            return seen(output, "none" if self.blind and output._world.rank else token)

        Output._open_log = open_log  # type: ignore[method-assign]
        plain = training_run.Run._batch

        def batch(run: training_run.Run, ticket: Ticket) -> Batch:
            self.tickets.append(ticket)
            return plain(run, ticket)

        training_run.Run._batch = batch  # type: ignore[method-assign]
        training_run.asked_to_stop = self._asked  # type: ignore[assignment]

    def _asked(self) -> str:
        return "SIGUSR1" if self.until is not None and len(self.tickets) >= self.until else ""


def train(world: World, part: Part, watch: Watch, folder: Path, **options: Any) -> dict[str, Any]:
    watch.tickets.clear()
    trainer = mpitrain.Trainer(
        "mlp",
        world=world,
        mode=part.mode,
        servers=part.servers,
        run_dir=str(folder),
        dataset="mnist-sample",
        batch_size=SIZE,
        learning_rate=0.02,
        jit="off",
        threads=1,
        epochs=EPOCHS,
        log_every=4,
        eval_every="0.3ep",
        checkpoint_every=7,
        **part.options | options,
    )
    with suppress(AgreedExit):
        trainer.fit()
    model, checkpoints = folder / "model.keras", checkpoints_of(folder)
    return {
        "summary": trainer.summary,
        "history": trainer.history,
        "tickets": [tuple(ticket) for rank in world.gather_all(watch.tickets, "the end") for ticket in rank],
        "model": model.read_bytes() if model.exists() else b"",
        "steps": checkpoints.steps(),
        "manifest": checkpoints.newest_whole(print),
        "files": [path.name for path in folder.rglob("*")],
    }


def suffer(everyone: World, case: Case, watch: Watch, folder: Path) -> dict[str, Any]:
    """What rank 0 saw."""
    told: dict[str, Any] = {}
    watch.blind = case.blind
    world = everyone.split(range(case.first.ranks))
    if world is not None:
        if case.equal or case.equivalent:
            told["uncut"] = train(world, case.first, watch, folder / "uncut", optimizer=case.optimizer)
        watch.until = CUT
        told["first"] = train(world, case.first, watch, folder / "cut", optimizer=case.optimizer)
        watch.until = None
        world.free()
    world = everyone.split(range(case.second.ranks))
    if world is not None:
        resume = {"optimizer": case.optimizer, "resume": str(folder / "cut")}
        told["second"] = train(world, case.second, watch, folder / "cut", **resume)
        world.free()
    return told


def main(folder: Path) -> None:
    everyone = start_mpi()
    numpy_job.install(RandomStep)
    watch = Watch()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        for case in CASES:
            told = suffer(everyone, case, watch, folder / str(case))
            if everyone.rank == 0:
                (folder / f"{case}.seen").write_bytes(pickle.dumps(told))
            everyone.meet("the end of a case")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
