"""``python -m tests.cluster_lab.modes FOLDER``: a short training in each mode, in one start of MPI, in plain numpy.

Rank 0 writes ``told.json``: of each the hosts, and what it left.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from mpitrain.cluster.hooks import install_hooks
from mpitrain.cluster.job import start_mpi, stop_mpi
from mpitrain.config import RunConfig
from mpitrain.training.trainer import Trainer
from tests.support import numpy_job

STEPS = 30
RUNS: dict[str, dict[str, Any]] = {
    "mpi": {"mode": "allreduce", "allreduce": "mpi"},
    "ring": {"mode": "allreduce", "allreduce": "ring"},
    "halving-doubling": {"mode": "allreduce", "allreduce": "halving-doubling"},
    "hierarchical": {"mode": "allreduce", "allreduce": "hierarchical"},
    "ps-sync": {"mode": "ps-sync", "servers": 2},
    "ps-sync-spread": {"mode": "ps-sync", "servers": 2, "server_placement": "spread"},
    "ps-async": {"mode": "ps-async"},
}
EXACT = ("ring", "halving-doubling", "ps-sync", "ps-sync-spread")
"""The same bits wherever the ranks are."""


def main(folder: Path) -> None:
    """Run all."""
    numpy_job.install(numpy_job.PixelStep)
    install_hooks()
    world = start_mpi()
    told: dict[str, Any] = {"hosts": world.hosts, "nodes": len(set(world.leaders))}
    for name, options in RUNS.items():
        if name == "hierarchical" and told["nodes"] == 1:
            options = options | {"allreduce": "shared"}  # which it is there
        config = RunConfig(
            model="mlp",
            dataset="mnist-sample",
            jit="off",
            threads=1,
            batch_size=10,
            optimizer="sgd",
            learning_rate=0.5,
            train_steps=STEPS,
            checkpoint_every="0",
            run_dir=str(folder / name),
            **options,
        )
        trainer = Trainer(config=config, world=world)
        trainer.fit()
        if world.rank == 0:
            assert trainer.summary is not None
            content = (folder / name / "model.keras").read_bytes()
            told[name] = {
                "updates": trainer.summary.updates,
                "samples": trainer.summary.samples,
                "staleness": sum(trainer.summary.staleness.values()),
                "loss": trainer.summary.val_loss,
                "accuracy": trainer.summary.val_accuracy,
                "bits": hashlib.sha256(content).hexdigest(),
            }
    if world.rank == 0:
        (folder / "told.json").write_text(json.dumps(told))
    stop_mpi()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
