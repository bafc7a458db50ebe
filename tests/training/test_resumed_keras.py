"""Keras models go on bit for bit; their weights come out of a checkpoint as plain Keras files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.mpi import launch
from tests.training.resumed_keras import CASES, CUT
from tests.training.test_resumed import comparable


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("resumed-keras")
    launch(3, ["-m", "tests.training.resumed_keras", str(folder)], timeout=240).check()
    found: dict[str, Any] = pickle.loads((folder / "told").read_bytes())
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_was_cut_equals_the_run_that_was_not(name: str, told: dict[str, Any]) -> None:
    seen = told[name]
    assert seen["first"]["manifest"].step == CUT
    assert seen["second"]["manifest"].step == seen["uncut"]["manifest"].step == 14
    assert seen["got"].keys() == seen["wanted"].keys()
    for vector, content in seen["wanted"].items():
        assert seen["got"][vector] == content, vector
    assert comparable(seen["second"]["history"]) == comparable(seen["uncut"]["history"])


def test_what_is_kept(told: dict[str, Any]) -> None:
    kept = {name: set(told[name]["wanted"]) for name in CASES}
    everywhere = {"parameters", "state", "worker.0.0", "optimizer.velocity"}
    assert kept["all-reduce"] == everywhere | {"optimizer.momentum", "worker.1.0", "worker.2.0"}
    assert kept["servers"] == everywhere | {"optimizer.factor"}
    seeds = [told["all-reduce"]["wanted"][f"worker.{worker}.0"] for worker in range(3)]
    assert len(set(seeds)) == 3, "each worker drops other units"


def test_the_model_comes_out_as_a_plain_file(told: dict[str, Any]) -> None:
    out = told["exported"]
    assert out["step"] == 14
    assert out["exported"] == out["loaded"] == out["run"]
    assert "is of another model (it holds " in out["refused"]
