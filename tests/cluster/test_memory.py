"""Memory that runs out: who says so, with which figures, and how the run ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from mpitrain.cluster import memory
from mpitrain.errors import ExitCode, InputError
from mpitrain.training.run import FIRST_STEP
from tests.support.mpi import ROOT, environment, launch


def starve(what: str, folder: Path, extra: dict[str, str] | None = None, mode: str = "ps-sync") -> Any:
    arguments = ["-m", "tests.cluster.starving", what, "1", "--mode", mode, "--train-steps", "100000"]
    return launch(3, [*arguments, "--run-dir", str(folder / "run")], 120, extra)


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return found


@pytest.mark.parametrize("mode", ["allreduce", "ps-async"])
def test_a_failed_allocation_names_the_rank_its_peak_and_the_nodes_memory(mode: str, tmp_path: Path) -> None:
    ended = starve("array", tmp_path, mode=mode)
    assert ended.code == ExitCode.OUT_OF_MEMORY, ended.err
    (told,) = (line for line in ended.err.splitlines() if line.startswith("mpitrain: error: "))
    host = os.uname().nodename
    assert told.startswith(f"mpitrain: error: rank 1 on {host} ran out of memory in 'computing a gradient' at step ")
    assert told.endswith(f" GB, the node has {memory.gigabytes(memory.node_memory())}")
    assert re.search(r"numpy\._?core\._exceptions\._ArrayMemoryError: Unable to allocate", ended.err)
    left = summary(tmp_path)
    assert (left["status"], left["rank"]) == ("failed", 1)
    assert f": error: {left['cause']}" in told
    assert all(left["peak_memory"][str(rank)] > 1e7 for rank in range(3))


def test_a_model_that_is_too_large_ends_the_start_in_agreement(tmp_path: Path) -> None:
    ended = starve("model", tmp_path)
    assert ended.code == ExitCode.OUT_OF_MEMORY, ended.err
    (told,) = (line for line in ended.err.splitlines() if line.startswith("mpitrain: error: "))
    assert told.startswith("mpitrain: error: rank 1: memory ran out in 'making the model': its peak was ")
    assert "Traceback" not in ended.err
    left = summary(tmp_path)
    assert (left["status"], left["rank"], left["exit_code"]) == ("failed", 1, ExitCode.OUT_OF_MEMORY)
    assert set(left["peak_memory"]) == {"0", "1", "2"}


def test_a_process_that_the_kernel_killed_for_want_of_memory_is_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 12\noom_kill 3\n")
    ended = starve("killed", tmp_path, {"FAKE_PROC": str(tmp_path)})
    assert ended.code == 128 + signal.SIGKILL, "mpirun tells how the rank died"
    (told,) = (line for line in ended.err.splitlines() if line.startswith("mpitrain: error: "))
    assert told.startswith("mpitrain: error: rank 1 on ")
    assert "peak memory" in told
    assert f"memory ran out (the node has {memory.gigabytes(memory.node_memory())})" in told
    left = summary(tmp_path)
    assert (left["status"], left["rank"], left["exit_code"]) == ("failed", 1, ExitCode.OUT_OF_MEMORY)
    assert left["peak_memory"]["1"] > 1e7


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("version", [1, 2])
def test_the_limits_and_kills_of_all_enclosing_cgroups_count(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroup")
    root = tmp_path / "cgroup" / ("memory" if version == 1 else "")
    limit, kills = ("memory.limit_in_bytes", "memory.oom_control") if version == 1 else ("memory.max", "memory.events")
    group = "7:cpu,cpuacct:/x\n4:memory:/slurm/job_3/step_0\n0::/\n" if version == 1 else "0::/slurm/job_3/step_0\n"
    everything = psutil.virtual_memory().total
    assert (memory.node_memory(), memory.oom_kills()) == (everything, 0), "a kernel that says nothing"
    write(tmp_path / "proc" / "self" / "cgroup", group)
    write(tmp_path / "proc" / "vmstat", "oom_kill 2\npgfault 9\n")
    write(root / "slurm" / "job_3" / "step_0" / limit, "9223372036854771712\n" if version == 1 else "max\n")
    write(root / "slurm" / "job_3" / limit, "300000000\n")
    write(root / "slurm" / limit, "900000000\n")
    write(root / "slurm" / "job_3" / "step_0" / kills, "under_oom 0\noom_kill 5\n")
    write(root / kills, "oom_kill 1\n")
    write(tmp_path / limit, "1\n")
    assert memory.node_memory() == 300_000_000
    assert memory.oom_kills() == 8


def test_what_counts_as_want_of_memory() -> None:
    class ResourceExhaustedError(Exception):
        """TensorFlow's bears this name."""

    with pytest.raises(MemoryError) as numpys:
        np.ones(1 << 46)
    assert memory.is_memory_error(numpys.value)
    assert memory.is_memory_error(ResourceExhaustedError())
    told = InputError("the model function raised")
    assert not memory.is_memory_error(told)
    told.__cause__ = MemoryError()
    assert memory.is_memory_error(told)


def test_the_peak_grows_with_what_is_held() -> None:
    before = memory.peak_memory()
    held = np.ones(before // 8 + 1)
    assert memory.peak_memory() > before + held.nbytes / 2


def test_the_hooks_can_be_left_out(tmp_path: Path) -> None:
    ended = starve("defect", tmp_path, {"MPITRAIN_NO_EXCEPTHOOK": "1"})
    assert "ValueError: the model has a defect" in ended.err
    assert "failed in" not in ended.err, "Python's own traceback"
    assert re.search(r"^mpitrain: error: rank 1 on .* is gone: ", ended.err, re.MULTILINE)
    assert ended.code == 1, "Python's own"
    left = summary(tmp_path)
    assert (left["status"], left["rank"], left["exit_code"]) == ("failed", 1, ExitCode.PEER_FAILED)


def interrupted(times: int, folder: Path, step: float) -> tuple[int, str]:
    """Press Ctrl-C so often in a run of one process whose steps take so long; its exit code and standard error."""
    arguments = ["", "-1", "--train-steps", "1000000", "--log-every", "1", "--run-dir", str(folder / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.starving", *arguments],
        cwd=ROOT,
        env=environment({"STEP_SECONDS": str(step)}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    log, deadline = folder / "run" / "rank.0" / "log.txt", time.monotonic() + 100
    while not (log.exists() and FIRST_STEP in log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    said = ""
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        said = said or process.stderr.readline()
    left = process.communicate(timeout=100)[1]
    return process.returncode, said + left


def test_ctrl_c_ends_one_process_after_its_step(tmp_path: Path) -> None:
    code, err = interrupted(1, tmp_path, 0.05)
    assert (code, summary(tmp_path)["status"]) == (ExitCode.PREEMPTED, "preempted")
    assert err.startswith("mpitrain: SIGINT: the run ends after the step under way")
    assert "Traceback" not in err


def test_a_second_ctrl_c_ends_one_process_at_once(tmp_path: Path) -> None:
    code, err = interrupted(2, tmp_path, 1000)
    assert code == 128 + signal.SIGINT
    assert "Traceback" not in err
