"""The Python API as a user's script calls it, several runs in one job.

mpirun -np 3 python -m tests.training.api FOLDER
"""

from __future__ import annotations

import dataclasses
import pickle
import sys
from pathlib import Path
from typing import Any

import mpitrain
from mpitrain.cluster.agreement import AgreedExit
from mpitrain.exchange.allreduce.exchange import AllReduceExchange


def batch_norm() -> Any:
    """Imported late: a server that makes no model imports no TensorFlow."""
    from tests.support import user_models

    return user_models.batch_norm()


def subclassed() -> Any:
    from tests.support import user_models

    return user_models.subclassed()


def spoil(rank: int) -> None:
    """Let the parameters of ``rank`` go astray at its tenth update."""
    plain = AllReduceExchange.finish

    def finish(self: AllReduceExchange, result: Any) -> Any:
        if self._world.rank == rank and self.totals.version == 9:
            self.parameters[3] += 1e-6
        return plain(self, result)

    AllReduceExchange.finish = finish  # type: ignore[method-assign]


def main(folder: Path) -> None:
    seen: dict[str, Any] = {}
    for name, model, options in (
        ("norm-ps-sync", batch_norm, {"mode": "ps-sync"}),
        ("norm-ps-async", batch_norm, {"mode": "ps-async"}),
        ("subclassed", subclassed, {"mode": "ps-async", "optimizer": "rmsprop"}),
        ("norm-allreduce", batch_norm, {"mode": "allreduce"}),
    ):
        trainer = mpitrain.Trainer(
            model,
            dataset="mnist-sample",
            epochs=1,
            learning_rate=0.003,
            eval_every="20",
            log_every=10,
            jit="off",
            run_dir=str(folder / name),
            **options,
        )
        returned = trainer.fit()
        assert returned == trainer.history
        seen[name] = {
            "history": [dataclasses.asdict(record) for record in trainer.history],
            "summary": dataclasses.asdict(trainer.summary),  # type: ignore[arg-type]
            "is_main": trainer.is_main,
            "serves": trainer.roles.serves(trainer.world.rank),
            "tensorflow": "tensorflow" in sys.modules,
        }
    spoil(rank=2)
    trainer = mpitrain.Trainer(
        batch_norm,
        dataset="mnist-sample",
        train_steps=20,
        # Where owners update in the node's memory, ranks have no parameters of their own to differ in.
        allreduce="mpi",
        shard_optimizer="off",
        jit="off",
        run_dir=str(folder / "spoilt"),
    )
    try:
        trainer.fit()
    except AgreedExit as end:
        seen["spoilt"] = {"code": end.code, "reason": end.reason}
    (folder / f"seen.{trainer.world.rank}").write_bytes(pickle.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
