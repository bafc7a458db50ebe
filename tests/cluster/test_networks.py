"""Which networks MPI is to leave alone, and what is said where hosts do not reach each other."""

from __future__ import annotations

import sys
from ipaddress import IPv4Interface
from pathlib import Path

import pytest

from mpitrain.cluster import networks
from mpitrain.cluster.host import processor
from mpitrain.cluster.mpi_library import Library
from tests.support.mpi import environment, run

OPEN_MPI, MPICH = Library("Open MPI v5.0.11, package: x"), Library("MPICH Version:      5.0.2")
BRIDGED = {"docker0": "172.17.0.1/16", "eth0": "10.0.0.1/24", "br-0123456789ab": "172.18.0.1/16"}
TWO = {"ib0": "10.1.0.1/16", "eth0": "10.0.0.1/24"}


def _has(monkeypatch: pytest.MonkeyPatch, table: dict[str, str]) -> None:
    monkeypatch.setattr(networks, "interfaces", lambda: {n: IPv4Interface(a) for n, a in table.items()})
    monkeypatch.setattr(networks, "cards", lambda: ["mlx5_0:1"])


def test_bridges_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    _has(monkeypatch, BRIDGED)
    settings: dict[str, str] = {}
    networks.leave_out_bridges(OPEN_MPI, settings)
    assert settings == {
        "OMPI_MCA_btl_tcp_if_exclude": "127.0.0.0/8,sppp,docker0,br-0123456789ab",
        "UCX_NET_DEVICES": "mlx5_0:1,eth0",
    }
    settings = {}
    networks.leave_out_bridges(MPICH, settings)
    assert settings == {"UCX_NET_DEVICES": "mlx5_0:1,eth0"}


def test_what_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _has(monkeypatch, BRIDGED)
    settings = {"OMPI_MCA_btl_tcp_if_include": "docker0"}
    networks.leave_out_bridges(OPEN_MPI, settings)
    assert settings == {"OMPI_MCA_btl_tcp_if_include": "docker0"}
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "openmpi-mca-params.conf").write_text("# networks\n btl_tcp_if_include = eth0\n")
    settings = {}
    networks.leave_out_bridges(Library(OPEN_MPI.text, str(tmp_path / "lib" / "libmpi.so.40")), settings)
    assert not settings
    _has(monkeypatch, TWO)
    networks.leave_out_bridges(OPEN_MPI, settings)
    assert not settings


def test_the_hint_names_the_network_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    _has(monkeypatch, TWO)
    ssh = {"SSH_CONNECTION": "10.0.0.9 4711 10.0.0.1 22"}
    assert networks.hint(OPEN_MPI, ssh).endswith("with `mpirun --mca btl_tcp_if_include 10.0.0.0/24`")
    assert "UCX_NET_DEVICES=eth0 FI_TCP_IFACE=eth0" in networks.hint(MPICH, ssh)
    assert "ib0 10.1.0.1/16, eth0 10.0.0.1/24" in networks.hint(OPEN_MPI, ssh)
    _has(monkeypatch, {"eth0": "10.0.0.1/24"})
    assert "check the firewall" in networks.hint(OPEN_MPI, ssh)


def test_a_last_word_comes_only_from_an_exit_inside_the_block() -> None:
    program = "import ctypes; from mpitrain.cluster.last_call import saying\nwith saying('100 % of it'): {}\n"
    said = run([sys.executable, "-c", program.format("ctypes.CDLL(None).exit(3)")], 20, environment())
    assert (said.code, said.out) == (3, "mpitrain: error: 100 % of it\n")
    said = run([sys.executable, "-c", program.format("pass")], 20, environment())
    assert (said.code, said.out, said.err) == (0, "", "")


def test_the_type_of_a_processor(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("model name\t: A  B\nflags\t\t: fpu avx avx2\n\nmodel name\t: C\n")
    assert processor(path).endswith(", A B, avx2")
    path.write_text("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\nFeatures\t: fp asimd\n")
    assert processor(path).endswith(", 0x41 0xd0c, asimd")
    assert processor(tmp_path / "missing")
