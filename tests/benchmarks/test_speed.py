"""A short part of the benchmarks, bounded at 0.8 of what they are to show: enough to notice that something broke."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.mpi import environment, launch, run

ROOT = Path(__file__).resolve().parents[2]
LOOSE = 0.8


def ratios(table: str) -> dict[str, float]:
    """The ratio of each row of a benchmark's table, by its name."""
    found = re.findall(r"^\| ([^|]+) \|.*\*\*([\d.]+)\*\*", table, re.MULTILINE)
    assert found, table
    return {name: float(ratio) for name, ratio in found}


@pytest.mark.parametrize(("model", "repeats"), [("mlp", 9), ("cnn", 5)])
def test_a_step_is_not_slower_than_keras(model: str, repeats: int) -> None:
    command = [sys.executable, "-m", "benchmarks.step", "--models", model, "--repeats", str(repeats)]
    ended = run(command, 200, environment(), ROOT).check()
    assert ratios(ended.out)[model] >= LOOSE * 1.1


def test_all_reduce_costs_little() -> None:
    arguments = ["-m", "benchmarks.allreduce", "--models", "mlp,cnn", "--repeats", "5"]
    found = ratios(launch(2, arguments, 280, cwd=ROOT).check().out)
    for model, plain, mpi in (("mlp", 0.90, 0.65), ("cnn", 0.97, 0.93)):
        assert found[f"{model}: shared, each rank updates its slice"] >= LOOSE * 1.0
        assert found[f"{model}: shared, all update everything"] >= LOOSE * plain
        assert found[f"{model}: mpi, all update everything"] >= LOOSE * mpi


def test_servers_outrun_tensorflow_1() -> None:
    options = ["--models", "mlp", "--peers", "tf1-async", "--repeats", "2"]
    ended = run([sys.executable, "-m", "benchmarks.peers", *options], 280, environment(), ROOT).check()
    assert ratios(ended.out)["TensorFlow 1 server, asynchronous"] >= LOOSE * 2


@pytest.mark.compiler
@pytest.mark.timeout(600)
def test_the_other_peers_start_and_are_compared(horovod: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- peers mlp -->\nold\n<!-- end of peers mlp -->\nafter\n")
    options = ["--models", "mlp", "--repeats", "1", "--steps", "20", "--dataset", "mnist-sample", "--to", str(page)]
    options += ["--peers", "horovod,mirrored"]
    ended = run([str(horovod), "-m", "benchmarks.peers", *options], 280, environment(), ROOT).check()
    assert len(ratios(ended.out)) == 2
    before, _, rest = page.read_text().partition("\n")
    assert (before, rest.splitlines()[-1]) == ("before", "after")
    assert "old" not in rest
    assert ratios(rest) == ratios(ended.out)


def test_the_watchdog_costs_little() -> None:
    told = launch(2, ["-m", "benchmarks.watchdog", "--blocks", "3"], 280, cwd=ROOT).check().out
    # What its thread uses of a core shows however busy the machine is; the ratio of the steps only on a quiet one.
    (share,) = re.findall(r"share of a core: \*\*([\d.]+)\*\*", told)
    assert float(share) < 0.03
