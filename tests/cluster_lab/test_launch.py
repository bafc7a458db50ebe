from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster_lab.hosts import Lab
from tests.cluster_lab.slurm import Slurm
from tests.cluster_lab.test_unlike_hosts import mounted, network
from tests.cluster_lab.trained import Mpi
from tests.support.mpi import ROOT, Ended

pytestmark = pytest.mark.root
DOCTOR = ["doctor", "--dataset", "mnist-sample"]


def _launch(lab: Lab, mpi: Mpi, *arguments: str, extra: dict[str, str] | None = None) -> Ended:
    """With a host file in Open MPI's form, whatever the MPI."""
    hosts = ["--hostfile", str(ROOT / "hostfiles" / "two-machines.openmpi")]
    return lab.on("node1", [mpi.python, "-m", "mpitrain", "launch", *hosts, *arguments], extra=extra)


def test_doctor_on_two_hosts(lab: Lab, mpi: Mpi) -> None:
    told = json.loads(_launch(lab, mpi, "-np", "3", *DOCTOR, "--json").check().out)
    assert [rank["host"] for rank in told["ranks"]] == ["node1", "node1", "node2"]
    assert {finding["mark"] for finding in told["findings"] if finding["name"] != "launcher"} == {"ok"}
    [wire] = told["network"]
    assert (wire["host"], wire["other"], wire["error"]) == ("node1", "node2", "")
    assert wire["latency"] < 1e-2
    assert wire["bandwidth"] > 1e7
    assert not lab.on("node1", ["sh", "-c", "ls /tmp | grep mpitrain-hosts"]).out


def test_of_two_networks_the_one_of_the_hosts_names_is_used(lab: Lab, mpi: Mpi) -> None:
    with network(lab, "fast0", ["172.18.0.1", "172.18.0.2"]):
        ended = _launch(lab, mpi, "-np", "3", *DOCTOR, "--json").check()
    [wire] = json.loads(ended.out)["network"]
    assert not wire["error"]
    assert {"openmpi": "--mca btl_tcp_if_include 10.77.0.0/24", "mpich": "-iface eth0"}[mpi.name] in ended.err


def test_a_slurm_job(slurm: Slurm, mpi: Mpi) -> None:
    command = ["salloc", "--quiet", "--nodes=2", "--ntasks=3", mpi.python, "-m", "mpitrain", "launch", *DOCTOR]
    assert slurm.run(command).check().out.startswith("node1: ranks 0, 1, node2: rank 2\n")


def test_a_host_that_is_not_like_the_others_is_named(lab: Lab) -> None:
    mpi = Mpi.at("openmpi", Path(ROOT / ".venv").resolve())
    package = ROOT / "mpitrain"
    other, empty = lab.folder / "other.py", lab.folder / "empty"
    other.write_text('__version__ = "0.0.1"\n')
    empty.mkdir()
    for place, instead, reason in (
        (package / "__init__.py", other, "node2 has mpitrain 0.0.1 instead of"),
        (package, empty, f"{mpi.python} on node2 lacks mpitrain"),
        (mpi.prefix, empty, f"node2 has no {mpi.python}"),
    ):
        with mounted(lab, "node2", ["--bind", str(instead), str(place)]):
            _refused(_launch(lab, mpi, "--dry-run"), reason)
    nowhere = {"PRTE_MCA_plm_ssh_agent": "ssh -p 1"}
    _refused(_launch(lab, mpi, "--dry-run", extra=nowhere), "node2 cannot be reached by ssh without a password")


def _refused(ended: Ended, reason: str) -> None:
    assert ended.code == 2, ended.err
    (line,) = ended.err.splitlines()
    assert reason in line
