from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.mpi import Ended, environment, launch, run

MODES = ("allreduce", "ps-sync", "ps-async")
_LOADER = """
import gzip, json, pathlib, sys
sys.modules["mpitrain"] = None  # whoever imports it fails
import numpy as np
import keras

folder = pathlib.Path(sys.argv[1])
def idx(name, skip):
    return np.frombuffer(gzip.decompress((folder / f"{name}.gz").read_bytes()), np.uint8, offset=skip)
x = idx("t10k-images-idx3-ubyte", 16).reshape(-1, 28, 28, 1).astype("float32") / np.float32(255)
y = idx("t10k-labels-idx1-ubyte", 8)
found = {}
for path in sys.argv[2:]:
    if "subclassed" in path:
        from tests.support.user_models import Subclassed
    model = keras.saving.load_model(path)
    outputs = model.predict(x, batch_size=500, verbose=0)
    found[path] = {
        "accuracy": float((outputs.argmax(-1) == y).mean()),
        "weights": [w.tolist() for w in model.get_weights()],
        "state": [w.numpy().tolist() for w in model.non_trainable_weights if "moving" in w.path],
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Ended, Path]]:
    """The mlp trained for an epoch by the command, in a mode: how the job ended, and its run directory."""
    done: dict[str, tuple[Ended, Path]] = {}

    def of(mode: str) -> tuple[Ended, Path]:
        if mode not in done:
            folder = tmp_path_factory.mktemp("trained") / mode
            arguments = "--model mlp --dataset mnist-sample --epochs 1 --batch-size 32 --log-every 10 --eval-every 20"
            # At its own rate of 0.01 the asynchronous mlp wobbles too much for a bound on its accuracy.
            arguments += " --learning-rate 0.003"
            ended = launch(3, ["-m", "mpitrain", *arguments.split(), "--mode", mode, "--run-dir", str(folder)]).check()
            done[mode] = ended, folder
        return done[mode]

    return of


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path, list[dict[str, Any]]]:
    """What each rank of ``tests/training/api.py`` saw."""
    folder = tmp_path_factory.mktemp("api")
    ended = launch(3, ["-m", "tests.training.api", str(folder)]).check()
    return ended, folder, [pickle.loads((folder / f"seen.{rank}").read_bytes()) for rank in range(3)]


@pytest.fixture(scope="session")
def reopened() -> Callable[[list[Path]], dict[str, Any]]:
    """Open saved models in a process that cannot import mpitrain."""

    def of(paths: list[Path]) -> dict[str, Any]:
        import sys

        from mpitrain.data.sources import SAMPLE_FOLDER

        command = [sys.executable, "-c", _LOADER, str(SAMPLE_FOLDER), *map(str, paths)]
        found: dict[str, Any] = json.loads(run(command, 120.0, environment()).check().out.splitlines()[-1])
        return found

    return of
