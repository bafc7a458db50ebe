"""What two ranks do with the back end ``horovod``; each checks for itself.

mpirun -np 2 python -m tests.exchange.horovod_job FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import mpitrain
from mpitrain.cluster.job import start_mpi, stop_mpi
from mpitrain.cluster.world import World
from mpitrain.errors import InputError
from mpitrain.exchange.allreduce import horovod
from mpitrain.exchange.allreduce.backends import candidates, open_backend
from mpitrain.parameters.layout import Layout, aligned_zeros

LENGTHS = (1, 79_510, 1_000_003)


def gradient_of(rank: int, size: int, dtype: np.dtype) -> np.ndarray:
    """Read-only, as a step leaves it; any rank can make any other's."""
    vector = aligned_zeros(size, dtype)
    vector[:] = np.random.default_rng(rank).standard_normal(size)
    vector.flags.writeable = False
    return vector


def check_sums(world: World, size: int, dtype: np.dtype) -> None:
    """Plain, weighted, and with a rank left out: numpy's sum in float64, the same bits on every rank and each time."""
    layout = Layout.of([("vector", (size,))], dtype)
    gradients = [gradient_of(rank, layout.size, dtype) for rank in range(world.size)]
    backend = open_backend("horovod", world, layout)
    everyone, first = [True] * world.size, [rank == 0 for rank in range(world.size)]
    for used, factors in ((everyone, None), (everyone, [3.0, 0.5]), (first, None), (first, [2.0, 1.0])):
        weights = factors or [1.0] * world.size
        wanted = np.sum([g.astype(float) * w for g, w, u in zip(gradients, weights, used, strict=False) if u], axis=0)
        sums = []
        for _ in range(2):
            backend.put(gradients[world.rank] if used[world.rank] else np.empty(0))
            sums.append(backend.sum(used, factors).copy())
        assert sums[0].dtype == dtype
        np.testing.assert_allclose(sums[0], wanted, rtol=1e-5, atol=1e-5)
        told = world.gather_all([s.tobytes() for s in sums], "comparing")
        assert all(one == told[0][0] for both in told for one in both)
    assert backend.sent == 2 * (world.size - 1) * layout.nbytes // world.size
    backend.close()


def check_training(folder: Path) -> None:
    """Two ranks' sums have one order only, so both back ends must give the same bits."""
    models = {}
    for name in ("horovod", "mpi"):
        run_dir = folder / name
        options = {"dataset": "mnist-sample", "train_steps": 20, "jit": "off", "threads": 1, "shard_optimizer": "off"}
        mpitrain.Trainer("mlp", allreduce=name, run_dir=str(run_dir), eval_every="0", **options).fit()
        if (run_dir / "model.keras").exists():
            import keras

            models[name] = keras.saving.load_model(run_dir / "model.keras").get_weights()
    for one, other in zip(*models.values(), strict=True) if models else ():
        assert np.array_equal(one, other)


def check_one_at_a_time(world: World) -> None:
    layout = Layout.of([("vector", (16,))])
    backend = open_backend("horovod", world, layout)
    with pytest.raises(InputError, match=r"hvd.init\(\) has been called"):
        open_backend("horovod", world, layout)
    backend.close()


def suffer(world: World) -> None:
    """Rank 1 dies while rank 0 waits for its part of a sum."""
    backend = open_backend("horovod", world, Layout.of([("vector", (16,))]))
    gradient = gradient_of(0, 16, np.dtype(np.float32))
    for step in range(5):
        backend.put(gradient)
        if step == 3 and world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        backend.sum([True, True], None)


def main(folder: Path) -> None:
    """All of it."""
    world = start_mpi()
    assert "horovod" not in candidates(world)
    for size in LENGTHS:
        check_sums(world, size, np.dtype(np.float32))
    check_sums(world, 1000, np.dtype(np.float64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(horovod, "MAX_COUNT", 400)
        check_sums(world, 1000, np.dtype(np.float32))
    # Other ranks than the whole job's, in another order, and one alone.
    turned = world.split([1, 0])
    assert turned is not None
    check_sums(turned, 1000, np.dtype(np.float32))
    check_sums(world.split_by(world.rank), 1000, np.dtype(np.float32))
    check_one_at_a_time(world)
    check_training(folder)
    # MPI ends in order also where nobody has closed the back end.
    open_backend("horovod", world, Layout.of([("vector", (16,))]))
    stop_mpi()


if __name__ == "__main__":
    from mpitrain.cluster.hooks import install_hooks

    install_hooks()
    if sys.argv[1] == "kill":
        suffer(start_mpi())
    else:
        main(Path(sys.argv[1]))
