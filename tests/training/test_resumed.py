"""Every mode goes on as every other, on other ranks and servers: one launch makes all the runs."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.reporting.history import HistoryRecord
from tests.support.mpi import launch
from tests.training.resumed import BACKED, CASES, EPOCHS, Case

Told = dict[str, Any]
SAMPLES, TOTAL = 5500, round(EPOCHS * 5500)
every = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Told]:
    folder: Path = tmp_path_factory.mktemp("resumed")
    launch(4, ["-m", "tests.training.resumed", str(folder)], timeout=240).check()

    def of(case: Case) -> Told:
        told: Told = pickle.loads((folder / f"{case}.seen").read_bytes())
        return told

    return of


def comparable(records: list[HistoryRecord]) -> list[dict[str, Any]]:
    """Without what a clock says; epochs are stored with two decimals."""
    rows = [{k: v for k, v in asdict(r).items() if k not in ("time", "samples_per_second")} for r in records]
    return [row | {"epoch": round(row["epoch"], 2)} for row in rows]


@every
def test_each_sample_of_each_epoch_is_trained_on_once(case: Case, resumed: Callable[[Case], Told]) -> None:
    told = resumed(case)
    first, second = told["first"], told["second"]
    assert 0 < first["summary"].samples < TOTAL
    assert first["summary"].status == "preempted"
    assert second["summary"].status == "complete"
    assert second["summary"].samples == TOTAL, "what was applied"
    seen = Counter(
        (epoch, place)
        for _, epoch, low, size in first["tickets"] + second["tickets"]
        for place in range(low, low + size)
    )
    assert set(seen) == {divmod(sample, SAMPLES) for sample in range(TOTAL)}
    # A gradient that comes late is dropped there, and its samples are handed out again.
    assert case.first is BACKED or set(seen.values()) == {1}


@every
def test_history_and_summary_go_on_without_gap_or_double(case: Case, resumed: Callable[[Case], Told]) -> None:
    told = resumed(case)
    first, second = told["first"], told["second"]
    before, after = first["summary"], second["summary"]
    step = before.updates
    assert after.resumed == (step,)
    assert first["steps"][-1] == step
    assert first["manifest"][1].step == step
    assert comparable(second["history"])[: len(first["history"])] == comparable(first["history"])
    steps = [(record.step, record.kind) for record in second["history"]]
    assert steps == sorted(steps, key=lambda pair: pair[0])
    assert len(set(steps)) == len(steps)
    times = [record.time for record in second["history"]]
    assert times == sorted(times)
    assert second["history"][-1].samples == TOTAL
    assert after.updates == second["steps"][-1] == second["history"][-1].step
    assert after.train_seconds > before.train_seconds
    assert after.wall_seconds > before.wall_seconds
    assert after.saved.checkpoints > 0
    assert after.saved.failed == ()
    assert len(second["steps"]) == 2
    assert not [name for name in second["files"] if name.startswith(".") or name.endswith((".part", ".old", ".aside"))]


@pytest.mark.parametrize("case", [case for case in CASES if case.equal], ids=str)
def test_a_run_that_was_cut_equals_the_run_that_was_not(case: Case, resumed: Callable[[Case], Told]) -> None:
    told = resumed(case)
    assert len(told["uncut"]["model"]) > 0
    assert told["second"]["model"] == told["uncut"]["model"]
    assert comparable(told["second"]["history"]) == comparable(told["uncut"]["history"])


@every
def test_the_loss_continues(case: Case, resumed: Callable[[Case], Told]) -> None:
    told = resumed(case)
    evaluations = [record.val_loss for record in told["second"]["history"] if record.kind == "eval"]
    assert evaluations[-1] < evaluations[0]
    if case.equivalent:
        end, uncut = (np.frombuffer(told[name]["model"], np.float32) for name in ("second", "uncut"))
        assert np.abs(end - uncut).max() < 1e-6, "what is added up by others is the same to rounding"
