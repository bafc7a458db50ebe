"""Hosts that differ from one another: a run starts all the same, or ends with one sentence that names the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cluster_lab.hosts import Lab
from tests.cluster_lab.trained import Mpi
from tests.support.mpi import ROOT, Ended

pytestmark = pytest.mark.root


def _train(lab: Lab, mpi: Mpi, run_dir: Path, ranks: int = 3) -> Ended:
    options = ["--mode", "ps-sync", "--train-steps", "5", "--run-dir", str(run_dir)]
    return lab.on("node1", [*mpi.start("two-machines", ranks), "-m", "tests.cluster_lab.job", *options])


def _refused(ended: Ended) -> str:
    assert ended.code == 2, ended.err
    (line,) = [line for line in ended.err.splitlines() if line.startswith("mpitrain: error: ")]
    assert "Traceback" not in ended.err
    return line


def test_a_bridge_another_processor_and_no_common_folder(lab: Lab, mpi: Mpi) -> None:
    other, folder = lab.folder / "cpuinfo", lab.folder / f"own-{mpi.name}"
    other.write_text("model name\t: Another\nflags\t\t: avx\n\n")
    folder.mkdir()
    with ExitStack() as stack:
        stack.enter_context(mounted(lab, "node2", ["--bind", str(other), "/proc/cpuinfo"]))
        stack.enter_context(mounted(lab, "node2", ["-t", "tmpfs", "tmpfs", str(folder)]))
        stack.enter_context(network(lab, "docker0", ["172.17.0.1", "172.17.0.1"]))
        ended = _train(lab, mpi, folder / "run").check()
    assert ended.err.count("warning: node2 has another type of processor than node1") == 1
    assert "node2: 2 cores, 1 worker (rank 2) with 1 thread each" in ended.out
    assert {path.name for path in (folder / "run").iterdir()} >= {"summary.json", "model.keras", "rank.0", "rank.2"}
    assert "on node2, process" in (folder / "run" / "rank.2" / "log.txt").read_text()


def test_a_network_that_leads_nowhere(lab: Lab, mpi: Mpi) -> None:
    with network(lab, "fast0", ["172.18.0.1", "172.18.0.2"]):
        ended = _train(lab, mpi, lab.folder / f"nowhere-{mpi.name}")
    assert ended.code
    said = ended.out + ended.err
    option = "`mpirun --mca btl_tcp_if_include 10.77.0.0/24`" if mpi.name == "openmpi" else "UCX_NET_DEVICES=eth0"
    assert f"have MPI use the one that leads to the other hosts, with {option}" in said


def test_too_little_shared_memory(lab: Lab, mpi: Mpi) -> None:
    with mounted(lab, "node2", ["-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"]):
        line = _refused(_train(lab, mpi, lab.folder / "small", ranks=4))
    assert "/dev/shm on node2 has 1 MiB free but" in line
    assert "--shm-size=256m" in line


def test_another_version(lab: Lab) -> None:
    mpi = Mpi.at("openmpi", Path(ROOT / ".venv").resolve())
    other, own = lab.folder / "old.py", ROOT / "mpitrain" / "__init__.py"
    other.write_text(own.read_text().replace("__version__ = ", "__version__ = 'old-' + "))
    with mounted(lab, "node2", ["--bind", str(other), str(own)]):
        line = _refused(_train(lab, mpi, lab.folder / "old"))
    assert "rank 2 on node2 has mpitrain old-" in line


@contextmanager
def mounted(lab: Lab, host: str, arguments: list[str]) -> Iterator[None]:
    """Mount something on one host."""
    lab.on(host, ["mount", *arguments]).check()
    try:
        yield
    finally:
        lab.on(host, ["umount", "--lazy", arguments[-1]]).check()


@contextmanager
def network(lab: Lab, name: str, addresses: list[str]) -> Iterator[None]:
    """An interface on each host that leads nowhere."""
    for host, address in zip(lab.names, addresses, strict=True):
        add = f"ip link add {name} type veth peer name {name}p && ip address add {address}/16 dev {name}"
        lab.on(host, ["sh", "-c", f"{add} && ip link set {name}p up && ip link set {name} up"]).check()
    try:
        yield
    finally:
        for host in lab.names:
            lab.on(host, ["ip", "link", "delete", name]).check()
