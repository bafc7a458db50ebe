"""One rank fails, and the others end in time and say who it was: few cells that cover the whole matrix."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.faults.launch import Seen, judge, suffer, train
from tests.faults.matrix import CORE_FAULTS, CORE_MOMENTS, FAULTS, MODES, MOMENTS, ROLES, Cell, cells, covering

COVERING = covering(cells())
SIDE_BY_SIDE = 3


@pytest.fixture(scope="module")
def jobs() -> Iterator[dict[Cell, Future[Seen]]]:
    """All jobs under way: most of their time is spent waiting."""
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield {cell: pool.submit(suffer, cell) for cell in COVERING}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("cell", COVERING, ids=str)
def test_it_ends_as_promised(cell: Cell, jobs: dict[Cell, Future[Seen]]) -> None:
    seen = jobs[cell].result()
    wrong = judge(cell, seen)
    assert not wrong, "; ".join(wrong) + f"\n--- mpirun ended with {seen.code}\n{seen.err[-6000:]}"


def test_every_possible_pair_is_covered() -> None:
    axes = (CORE_FAULTS, tuple(ROLES), MODES, CORE_MOMENTS)
    fields = ("fault", "role", "mode", "moment")
    for (one, ones), (other, others) in itertools.combinations(zip(fields, axes, strict=True), 2):
        for pair in itertools.product(ones, others):
            able = [c for c in cells() if (getattr(c, one), getattr(c, other)) == pair]
            covered = [c for c in COVERING if (getattr(c, one), getattr(c, other)) == pair]
            assert bool(covered) == bool(able), pair
    assert {c.fault for c in COVERING} == set(FAULTS)
    assert {c.moment for c in COVERING} == set(MOMENTS)


@pytest.mark.parametrize(
    ("mode", "choices"),
    [
        ("allreduce", ("--allreduce", "mpi")),
        ("allreduce", ("--allreduce", "shared", "--shard-optimizer", "off")),
        ("allreduce", ("--allreduce", "shared", "--shard-optimizer", "on")),
        ("ps-sync", ()),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value[1::2]),
)
def test_a_rank_that_is_stopped_for_less_than_the_limit_changes_nothing(mode: str, choices: tuple[str, ...]) -> None:
    """Two runs that measure may choose two back ends, which add in different orders: here both are told."""
    undisturbed = train(mode, more=choices)
    paused = train(mode, "pause", "step", rank=2, seconds=2.0, more=choices)
    assert (undisturbed.code, paused.code) == (0, 0), undisturbed.err + paused.err
    assert paused.summary["status"] == "complete"
    assert len(paused.model) > 0
    assert paused.model == undisturbed.model


def test_the_suite_notices_a_watchdog_that_sleeps() -> None:
    """Without its judgement nothing would end a job whose rank is stopped."""
    cell = Cell("stop", "worker", "allreduce", "step")
    seen = train(cell.mode, cell.fault, cell.moment, cell.rank, extra={"FAULTS_NO_JUDGEMENT": "1"}, hung=12.0)
    wrong = judge(cell, seen)
    assert "it hung" in wrong
    assert os.uname().nodename not in seen.err
