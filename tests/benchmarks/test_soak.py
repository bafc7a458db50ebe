"""A few of the many runs of the soak, and that a run which fails is noticed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import soak
from tests.support.mpi import environment, mpirun, run

ROOT = Path(__file__).resolve().parents[2]


def with_mpirun() -> dict[str, str]:
    variables = environment()
    return variables | {"PATH": f"{Path(mpirun()).parent}:{variables['PATH']}"}


def test_a_few_runs_at_random_neither_hang_nor_fail() -> None:
    ended = run([sys.executable, "-m", "benchmarks.soak", "--runs", "5"], 280, with_mpirun(), ROOT).check()
    assert "5 runs of 20 steps on 1 to 7 ranks" in ended.out
    assert "0 failed" in ended.out


def test_a_run_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in with_mpirun().items():
        monkeypatch.setenv(name, value)
    assert "exit code" in soak.run(2, ["nonsense", "1", "0"])
    monkeypatch.setattr(soak, "run", lambda ranks, which: "" if ranks > 1 else "exit code 70")
    assert not soak.soak(20, 2, 1)
    told = capsys.readouterr().out
    assert "20 runs" in told
    assert "failed after" in told
    assert " 0 failed" not in told
