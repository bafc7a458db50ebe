"""``python -m tests.checkpoints.refusing FOLDER``: runs whose files meet with an accident after the first save.

They save every twelfth update, of which there are 48. ``FOLDER/NAME.saved`` has what each run's summary says of saves.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mpitrain.checkpoints.find import checkpoints_of
from mpitrain.cluster.hooks import install_hooks
from mpitrain.cluster.job import start_mpi, stop_mpi
from mpitrain.config import RunConfig
from mpitrain.parameters.step import Batch, OnReady, StepResult
from mpitrain.reporting.files import write_json
from mpitrain.training.trainer import Trainer
from tests.support import numpy_job

STEPS, EVERY = 48, 12
_PATIENCE = 0.1  # seconds in each step for the first checkpoint to become whole: between steps it moves on


def _mount(folder: Path, *options: str) -> None:
    subprocess.run(["mount", *options, str(folder)], check=True)


def _fill(run: Path) -> None:
    """The file that takes all room is deleted before the last save."""
    with (run / "checkpoints" / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def _make_room(run: Path) -> None:
    (run / "checkpoints" / "ballast").unlink()


def _nothing(run: Path) -> None:
    pass


ACCIDENTS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "full": (_fill, _make_room),
    "read-only": (lambda run: _mount(run / "checkpoints", "-o", "remount,ro"), _nothing),
    "no checkpoints": (lambda run: shutil.rmtree(run / "checkpoints", ignore_errors=True), _nothing),
    "no run": (shutil.rmtree, _nothing),
    "no data": (lambda run: shutil.rmtree(run.parent / "data"), _nothing),
}
MOUNTED = ("full", "read-only")


class Step(numpy_job.PixelStep):
    """The accident happens once the first checkpoint is there, and what ends it before the last one."""

    def __init__(self, run: Path | None) -> None:
        super().__init__(0.01)
        self._run_dir, self._happened = run, False

    def run(self, parameters: np.ndarray, batch: Batch, on_ready: OnReady | None = None) -> StepResult:
        if self._run_dir is not None:
            happens, ends = ACCIDENTS[self._run_dir.name]
            if not self._happened and EVERY < self.runs < 2 * EVERY and self._is_saved(self._run_dir):
                happens(self._run_dir)
                self._happened = True
            if self.runs == STEPS - 1:
                ends(self._run_dir)
        return super().run(parameters, batch, on_ready)

    def _is_saved(self, run: Path) -> bool:
        end = time.monotonic() + _PATIENCE
        while not (there := bool(checkpoints_of(run).steps())) and time.monotonic() < end:
            time.sleep(0.01)
        return there


def main(folder: Path) -> None:
    """Run all."""
    install_hooks()
    world = start_mpi()
    for name in ACCIDENTS:
        run = folder / name
        if world.rank == 0:
            run.mkdir()
            if name in MOUNTED:
                (run / "checkpoints").mkdir()
                _mount(run / "checkpoints", "-t", "tmpfs", "-o", "size=1m", "tmpfs")
        world.meet("making folders")
        numpy_job.install(lambda run=run: Step(run if world.rank == 0 else None))  # type: ignore[misc]
        config = RunConfig(
            model="mlp",
            mode="allreduce",
            allreduce="mpi",
            dataset="mnist" if name == "no data" else "mnist-sample",
            data_dir=str(folder / "data") if name == "no data" else None,
            jit="off",
            threads=1,
            train_steps=STEPS,
            checkpoint_every=str(EVERY),
            keep=3,
            run_dir=str(run),
        )
        trainer = Trainer(config=config, world=world)
        trainer.fit()
        if world.rank == 0:
            assert trainer.summary is not None
            write_json(folder / f"{name}.saved", trainer.summary.saved)
            assert json.loads((run / "summary.json").read_text())["status"] == "complete"
    stop_mpi()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
