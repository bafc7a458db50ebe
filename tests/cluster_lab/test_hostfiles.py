from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cluster_lab.hosts import Lab
from tests.cluster_lab.trained import Mpi, check_trained, training
from tests.support.mpi import ROOT, environment, run

MODES = ["allreduce", "ps-sync", "ps-async"]


def test_one_machine(mpi: Mpi, tmp_path: Path) -> None:
    command = [*mpi.start("one-machine", 3), "-m", "mpitrain", *training("ps-sync", tmp_path / "run")]
    run(command, 120, environment(), tmp_path).check()
    check_trained(tmp_path / "run", "ps-sync")


@pytest.mark.root
@pytest.mark.parametrize("mode", MODES)
def test_two_machines(lab: Lab, mpi: Mpi, mode: str) -> None:
    run_dir = lab.folder / f"{mpi.name}-{mode}"
    lab.on("node1", [*mpi.start("two-machines", 3), "-m", "mpitrain", *training(mode, run_dir)], 180).check()
    check_trained(run_dir, mode)


@pytest.mark.root
def test_ranks_fill_the_file_from_the_top(lab: Lab, mpi: Mpi) -> None:
    program = (
        "from mpi4py import MPI; import socket; c = MPI.COMM_WORLD; print(c.gather(socket.gethostname()) or '', end='')"
    )
    ended = lab.on("node1", [*mpi.start("two-machines", 3), "-c", program]).check()
    assert json.loads(ended.out.replace("'", '"')) == ["node1", "node1", "node2"]


@pytest.mark.root
def test_bad_input_on_two_machines_is_one_sentence(lab: Lab, mpi: Mpi) -> None:
    ended = lab.on("node1", [*mpi.start("two-machines", 3), "-m", "mpitrain", "--servers", "3", "--mode", "ps-sync"])
    assert ended.code == 2
    assert ended.err.count("mpitrain: error:") == 1
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("path", sorted((ROOT / "hostfiles").glob("*-machine*")), ids=lambda path: path.name)
def test_host_files_hold_what_their_mpi_reads(path: Path) -> None:
    content = path.read_text()
    assert "\r" not in content
    hosts = [line for line in content.splitlines() if not line.startswith("#")]
    form = r"(localhost|node[12]) slots=\d" if path.suffix == ".openmpi" else r"(localhost|node[12]):\d"
    assert hosts
    for line in hosts:
        assert re.fullmatch(form, line), line
