"""Each MPI on three hosts, in every mode: what comes out is what the same ranks give on one host."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_lab.hosts import Lab
from tests.cluster_lab.modes import EXACT, RUNS, STEPS
from tests.cluster_lab.trained import Mpi
from tests.support.mpi import launch

pytestmark = pytest.mark.root
SLOTS = {"host1": 2, "host2": 1, "host3": 1}
PREFIXES = {"openmpi": "", "mpich": "mpich", "debian": "debian"}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("three"), tuple(SLOTS)) as lab:
        yield lab


@pytest.fixture(scope="module")
def on_one_host(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("one")
    launch(4, ["-m", "tests.cluster_lab.modes", str(folder)]).check()
    return _told(folder)


@pytest.mark.parametrize("name", PREFIXES)
def test_three_hosts_give_what_one_gives(hosts: Lab, on_one_host: dict[str, Any], name: str) -> None:
    mpi = Mpi.at(name, Path(sys.prefix, PREFIXES[name]))
    folder, file = hosts.folder / name, hosts.folder / f"hosts.{mpi.form}"
    folder.mkdir()
    form = "{} slots={}\n" if mpi.form == "openmpi" else "{}:{}\n"
    file.write_text("".join(form.format(host, count) for host, count in SLOTS.items()))
    # Version 4 has another name for memory.
    extra = {"OMPI_MCA_btl": "tcp,self,vader"} if name == "debian" else {}
    command = [*mpi.start(file, 4), "-m", "tests.cluster_lab.modes", str(folder)]
    hosts.on("host1", command, 120, extra).check()
    told = _told(folder)
    assert (told["hosts"], told["nodes"]) == (["host1", "host1", "host2", "host3"], 3)
    for run in RUNS:
        here, there = on_one_host[run], told[run]
        assert there["updates"] == STEPS
        if run in EXACT:
            assert there["bits"] == here["bits"], run
        elif run == "ps-async":
            assert (there["samples"], there["staleness"]) == (here["samples"], here["staleness"])
            assert there["loss"] == pytest.approx(here["loss"], rel=0.02)
        else:
            assert there["loss"] == pytest.approx(here["loss"], rel=1e-4)


def _told(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return told
