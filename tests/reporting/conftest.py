"""Records and summaries as a run would make them."""

import dataclasses

import pytest

from mpitrain.reporting.history import HistoryRecord
from mpitrain.reporting.summary import BytesPerUpdate, Share, Summary

RECORD = HistoryRecord(
    kind="train",
    step=400,
    epoch=0.73,
    time=8.25,
    loss=0.0812,
    accuracy=0.976,
    learning_rate=0.001,
    samples=40_000,
    samples_per_second=4812.4,
)
SUMMARY = Summary(
    mode="ps-async",
    model="cnn",
    dataset="mnist",
    workers=2,
    servers=1,
    batch_size=100,
    global_batch=200,
    updates=550,
    samples=110_000,
    epochs=2.0,
    train_loss=0.0123,
    val_loss=0.0341,
    val_accuracy=0.9902,
    test_loss=0.0312,
    test_accuracy=0.9911,
    samples_per_second=3650.2,
    samples_per_second_per_worker=1825.1,
    wall_seconds=62.13,
    train_seconds=30.14,
    share=Share(0.81, 0.09, 0.06, 0.04),
    bytes_per_update=BytesPerUpdate(26_197_072, 384),
    parameter_count=3_274_634,
    threads=1,
    staleness_mean=1.02,
    staleness_max=4,
    staleness={0: 10, 1: 520, 2: 10, 3: 5, 4: 5},
    staleness_by_worker={1: {0: 10, 1: 300}, 2: {1: 220, 2: 10, 3: 5, 4: 5}},
    clock_gap_max=7,
    dropped={2: {"late": 3, "not finite": 1}},
    choices={"compute": "flat", "jit_compile": False},
    versions={"mpitrain": "0.1.0", "tensorflow": "2.21.0"},
    peak_memory={0: 170_000_000, 1: 750_000_000, 2: 740_000_000},
    peak_memory_by_role={"server": 170_000_000, "worker": 750_000_000},
)


@pytest.fixture
def make_record():
    def make(**changes):
        if "val_loss" in changes:
            changes.setdefault("kind", "eval")
        return dataclasses.replace(RECORD, **changes)

    return make


@pytest.fixture
def make_summary():
    return lambda **changes: dataclasses.replace(SUMMARY, **changes)
