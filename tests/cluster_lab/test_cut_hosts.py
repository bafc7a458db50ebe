from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.cluster_lab.hosts import Lab
from tests.cluster_lab.trained import Mpi, await_steps

pytestmark = pytest.mark.root
STALL, AFTER = 5, 10
RANKS = {"h1": (0, 1), "h2": (2,), "h3": (3,)}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("hosts"), tuple(RANKS)) as lab:
        yield lab


@pytest.mark.parametrize("mode", ["allreduce", "ps-sync", "ps-async"])
def test_a_host_is_cut_off(hosts: Lab, mpi: Mpi, mode: str) -> None:
    _cut(hosts, mpi, mode, "h3")


@pytest.mark.parametrize("mode", ["allreduce", "ps-async"])
def test_the_launcher_s_host_is_cut_off(hosts: Lab, mpi: Mpi, mode: str) -> None:
    _cut(hosts, mpi, mode, "h1")


def _cut(lab: Lab, mpi: Mpi, mode: str, victim: str) -> None:
    """Nobody outlives it, on no host, and both sides say whom they miss."""
    run_dir = lab.folder / f"{mpi.name}-{mode}-{victim}"
    hostfile = lab.folder / f"hosts.{mpi.name}"
    form = "{} slots={}\n" if mpi.name == "openmpi" else "{}:{}\n"
    hostfile.write_text("".join(form.format(host, len(ranks)) for host, ranks in RANKS.items()))
    options = ["--mode", mode, "--stall-timeout", str(STALL), "--train-steps", "100000", "--run-dir", str(run_dir)]
    with lab.start("h1", [*mpi.start(hostfile, 4), "-m", "tests.cluster_lab.job", *options]) as job:
        try:
            await_steps(run_dir)
            lab.cut(victim)
            end = time.monotonic() + STALL + AFTER
            while alive := {host: lab.processes(host) for host in lab.names if lab.processes(host)}:
                assert time.monotonic() < end, f"still there: {alive}"
                time.sleep(0.1)
        finally:
            lab.mend(victim)
            _end(lab)
        said = job.communicate(timeout=10)[1]
    # The launcher is killed while it waits for the lost host; MPICH's ends by itself at times.
    assert job.returncode in (-signal.SIGKILL, 72, 255), said
    there = [rank for host, ranks in RANKS.items() if (host == victim) == (victim == "h1") for rank in ranks]
    gone = sorted({0, 1, 2, 3} - set(there))
    sentence = next(line for line in said.splitlines() if line.startswith("mpitrain: error:"))
    _check_names(sentence, gone)
    assert said.count("mpitrain: error:") == 1
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["exit_code"]) == ("stalled", 72)
    assert sentence.endswith(summary["cause"])
    for rank in range(4):
        last = (run_dir / f"rank.{rank}" / "log.txt").read_text().splitlines()[-1]
        _check_names(last, gone if rank in there else there)
    left = {host: lab.on(host, ["ls", "-A", "/dev/shm"]).check().out.split() for host in lab.names}
    assert not any(left.values()), left


def _check_names(sentence: str, ranks: list[int]) -> None:
    """It says of just these ranks where they were, and when."""
    seen = re.findall(r"rank (\d) on (h\d) gives no sign of life \(last seen in '[^']+' at step \d+\)", sentence)
    assert sorted(seen) == [
        (str(rank), host) for host, ranks_there in RANKS.items() for rank in ranks_there if rank in ranks
    ]


def _end(lab: Lab) -> None:
    """What a failed test leaves would disturb the next."""
    for host in lab.names:
        for pid in lab.processes(host):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
