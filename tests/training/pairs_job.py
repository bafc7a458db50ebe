"""Every mode with every option, and every two options that go together, for 20 steps each.

mpirun -np 4 python -m tests.training.pairs_job FOLDER
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpitrain.config import MODES, RunConfig
from mpitrain.errors import InputError
from mpitrain.pairs import RULES, check
from tests.support import numpy_job

RANKS, STEPS = 4, 20

USED: dict[str, Any] = {
    "server_placement": "spread",
    "transport": "mpi",
    "backup_workers": 1,
    "staleness_bound": 1,
    "soft_quorum": 3,
    "staleness_damping": True,
    "delay_compensation": 0.04,
    "adaptive_compensation": True,
    "local_steps": 4,
    "elastic": 0.2,
    "pipeline": True,
    "accumulate": 2,
    "wire_dtype": "float16",
}
"""A value for each option of the table."""


def working() -> Iterator[tuple[str, RunConfig]]:
    """Each working pair by name; what needs another option has it."""
    options = [rule.option for rule in RULES]
    for mode in MODES:
        for pair in [(), *((option,) for option in options), *itertools.combinations(options, 2)]:
            given = {option: USED[option] for option in pair}
            if "adaptive_compensation" in given:
                given["delay_compensation"] = USED["delay_compensation"]
            config = RunConfig(mode=mode, train_steps=STEPS, eval_every="7", **given)  # type: ignore[arg-type]
            try:
                check(config)
            except InputError:
                continue
            yield "-".join((mode, *pair)), config


def main(folder: Path) -> None:
    """Run all; the chief writes each run's summary."""
    numpy_job.install(numpy_job.PixelStep)
    from mpitrain.cluster.hooks import install_hooks
    from mpitrain.cluster.job import start_mpi, stop_mpi
    from mpitrain.training.trainer import Trainer

    install_hooks()
    world = start_mpi()
    told = {}
    common = {"model": "mlp", "dataset": "mnist-sample", "jit": "off", "threads": 1, "batch_size": 10}
    for name, config in working():
        config = config.replace(**common, learning_rate=0.01, optimizer="sgd", run_dir=str(folder / name))
        trainer = Trainer(config=config, world=world)
        trainer.fit()
        told[name] = asdict(trainer.summary)  # type: ignore[arg-type]
    if world.rank == 0:
        (folder / "told.json").write_text(json.dumps(told, default=str))
    stop_mpi()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
