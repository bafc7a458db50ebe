"""The back end ``horovod`` with a Horovod that was built here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.mpi import ROOT, Ended, environment, launch, run

pytestmark = [pytest.mark.compiler, pytest.mark.timeout(600)]


def two_ranks(python: Path, *arguments: str, timeout: float = 150) -> Ended:
    command = [str(python.with_name("mpirun")), "-np", "2", str(python), "-m", *arguments]
    return run(command, timeout, environment(), ROOT)


def test_two_ranks_sum_and_train_with_it(horovod: Path, tmp_path: Path) -> None:
    ended = two_ranks(horovod, "tests.exchange.horovod_job", str(tmp_path)).check()
    assert "all-reduce: horovod, all update everything (as asked)" in ended.out


def test_a_rank_that_dies_is_named(horovod: Path) -> None:
    ended = two_ranks(horovod, "tests.exchange.horovod_job", "kill", timeout=120)
    assert ended.code
    assert "rank 1" in ended.err
    assert "is gone" in ended.err


def test_its_absence_is_one_sentence() -> None:
    arguments = ["-m", "mpitrain", "bench", "allreduce", "--backends", "horovod"]
    ended = launch(2, arguments, 60)
    assert ended.code == 2
    (sentence,) = [line for line in ended.err.splitlines() if line.startswith("mpitrain: ")]
    assert "scripts/install-horovod.sh" in sentence


def test_a_second_build_has_nothing_to_do(horovod: Path) -> None:
    ended = run([str(ROOT / "scripts" / "install-horovod.sh"), str(horovod)], 60, os.environ).check()
    assert "building" not in ended.err
