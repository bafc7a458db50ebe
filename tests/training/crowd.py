"""``python -m tests.training.crowd FOLDER``: two ranks alone, then all, go through the data in each mode.

Rank 0 writes ``told.json``: of both, for each mode, how it ended, the samples and the seconds of training.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.cluster.hooks import install_hooks
from mpitrain.cluster.job import start_mpi, stop_mpi
from mpitrain.cluster.world import World
from mpitrain.config import MODES, RunConfig
from mpitrain.parameters.step import Batch, OnReady, StepResult
from mpitrain.training.trainer import Trainer
from tests.support import numpy_job

SECONDS = 10e-3
"""Of processor time, for a batch of 100 samples: about what the lstm takes."""
FEW = 2


class Step(numpy_job.PixelStep):
    def run(self, parameters: np.ndarray, batch: Batch, on_ready: OnReady | None = None) -> StepResult:
        end = time.thread_time() + SECONDS * batch.size / 100
        while time.thread_time() < end:
            pass
        return super().run(parameters, batch, on_ready)


def main(folder: Path) -> None:
    """Run both."""
    numpy_job.install(Step)
    install_hooks()
    world = start_mpi()
    few = world.split(range(FEW))
    told: list[dict[str, Any]] = []
    if few is not None:
        told.append(_train(few, folder / "few"))
    # Without a processor for those who wait.
    done = folder / "done"
    if world.rank == 0:
        done.touch()
    while not done.exists():
        time.sleep(0.1)
    told.append(_train(world, folder / "all"))
    if world.rank == 0:
        (folder / "told.json").write_text(json.dumps(told))
    stop_mpi()


def _train(world: World, folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for mode in MODES:
        config = RunConfig(
            mode=mode,  # type: ignore[arg-type]
            model="mlp",
            dataset="mnist-sample",
            jit="off",
            threads=1,
            epochs=2,
            checkpoint_every="0",
            run_dir=str(folder / mode),
        )
        trainer = Trainer(config=config, world=world)
        trainer.fit()
        assert trainer.summary is not None
        told[mode] = [trainer.summary.status, trainer.summary.samples, trainer.summary.train_seconds]
    return told


if __name__ == "__main__":
    main(Path(sys.argv[1]))
