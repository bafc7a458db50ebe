"""Keras models that are cut and go on: batch normalization, dropout, optimizers that need whole variables.

mpirun -np 3 python -m tests.training.resumed_keras FOLDER
"""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpitrain
from mpitrain.checkpoints.find import checkpoints_of, find
from mpitrain.cluster.agreement import AgreedExit
from mpitrain.cluster.job import start_mpi
from mpitrain.cluster.world import World
from tests.training.resumed import Watch

MODEL = "tests.support.user_models:batch_norm"
CUT = 7


@dataclass(frozen=True)
class Case:
    """A run that is cut, and goes on with ``servers`` and as many workers as before."""

    mode: str
    optimizer: str
    workers: int
    servers: tuple[int, int]


CASES = {
    "all-reduce": Case("allreduce", "adam", 3, (0, 0)),
    "servers": Case("ps-sync", "adafactor", 1, (2, 1)),
}


def train(world: World, case: Case, servers: int, folder: Path, **options: Any) -> dict[str, Any]:
    trainer = mpitrain.Trainer(
        MODEL,
        world=world,
        mode=case.mode,
        servers=max(1, servers),
        optimizer=case.optimizer,
        dataset="mnist-sample",
        learning_rate=0.01,
        batch_size=50,
        train_steps=14,
        jit="off",
        threads=1,
        log_every=3,
        eval_every="0",
        checkpoint_every="100",
        allreduce="shared" if case.mode == "allreduce" else "auto",
        run_dir=str(folder),
        **options,
    )
    with suppress(AgreedExit):
        trainer.fit()
    found = find(str(folder), None, print)
    assert found is not None
    return {"history": trainer.history, "summary": trainer.summary, "manifest": found.manifest}


def content(folder: Path) -> dict[str, bytes]:
    """Every vector and every small array of the newest checkpoint."""
    from mpitrain.checkpoints.reader import Reader

    found = find(str(folder), None, print)
    assert found is not None
    reader = Reader(*found)
    sizes = found.manifest.vectors()
    whole = {name: b"".join(piece.tobytes() for piece in reader.read(name, 0, size)) for name, size in sizes.items()}
    return whole | {name: array.tobytes() for name, array in reader.state().items()}


def main(folder: Path) -> None:
    everyone = start_mpi()
    watch = Watch()
    told: dict[str, Any] = {}
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        for name, case in CASES.items():
            uncut, cut = folder / name / "uncut", folder / name / "cut"
            told[name] = {}
            for part, path, servers, until, options in (
                ("uncut", uncut, case.servers[0], None, {}),
                ("first", cut, case.servers[0], CUT, {}),
                ("second", cut, case.servers[1], None, {"resume": str(cut)}),
            ):
                world = everyone.split(range(case.workers + servers))
                if world is not None:
                    watch.tickets.clear()
                    watch.until = until
                    told[name][part] = train(world, case, servers, path, **options)
                    world.free()
            everyone.meet("the end of a case")
            if everyone.rank == 0:
                told[name] |= {"wanted": content(uncut), "got": content(cut)}
    if everyone.rank == 0:
        told["exported"] = exported(folder)
        (folder / "told").write_bytes(pickle.dumps(told))
    everyone.meet("the end")


def exported(folder: Path) -> dict[str, Any]:
    """The weights that come out of a checkpoint in both ways, and those of the run's own model file."""
    import keras

    from mpitrain.training.exporting import export
    from tests.support.user_models import batch_norm

    run = folder / "all-reduce" / "cut"
    found = find(str(run), None, print)
    assert found is not None
    export(found, folder / "exported.keras")
    mine = batch_norm()
    step = mpitrain.load_checkpoint(checkpoints_of(run).of(found.manifest.step), mine)
    weights = {
        "run": keras.saving.load_model(run / "model.keras"),
        "exported": keras.saving.load_model(folder / "exported.keras"),
        "loaded": mine,
    }
    told: dict[str, Any] = {name: [w.tobytes() for w in model.get_weights()] for name, model in weights.items()}
    try:
        mpitrain.load_checkpoint(run, keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    except mpitrain.errors.InputError as error:  # type: ignore[attr-defined]
        told["refused"] = str(error)
    return told | {"step": step}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
