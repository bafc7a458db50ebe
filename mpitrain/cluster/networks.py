"""The networks of this host, and which of them MPI is to leave alone.

MPI takes every interface that is up for a way to the other hosts. A bridge of containers or virtual machines leads
nowhere, and often has one and the same address on every host: the first message is then lost, and all wait for ever.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from ipaddress import IPv4Interface
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from mpitrain.cluster.mpi_library import Library

_BRIDGES = re.compile(r"docker\d+|br-[0-9a-f]{12}|virbr\d+|lxcbr\d+|lxdbr\d+|incusbr\d+|podman\d+|cni\d+|cni-podman\d+")
_CHOSEN = ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude", "UCX_NET_DEVICES")


def interfaces() -> dict[str, IPv4Interface]:
    """The IPv4 address and network of each interface that is up, without loopback."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return {
        name: IPv4Interface(f"{address.address}/{address.netmask or '255.255.255.255'}")
        for name, found in psutil.net_if_addrs().items()
        for address in found
        if address.family == socket.AF_INET and name in up and not address.address.startswith("127.")
    }


def leave_out_bridges(library: Library, environment: MutableMapping[str, str] = os.environ) -> None:
    """Have MPI pass over bridges of containers and machines, unless the user has chosen; before ``MPI_Init``."""
    found = interfaces()
    bridges = [name for name in found if _BRIDGES.fullmatch(name)]
    if not bridges or environment.keys() & {*_CHOSEN} or _chosen_in_file(library):
        return
    if library.form == "openmpi":
        environment["OMPI_MCA_btl_tcp_if_exclude"] = ",".join(["127.0.0.0/8", "sppp", *bridges])
    # UCX knows no way to leave one out. It carries MPICH, and Open MPI where it finds a fast network.
    environment["UCX_NET_DEVICES"] = ",".join([*cards(), *(name for name in found if name not in bridges)])


def cards() -> list[str]:
    """The ports of this host's InfiniBand cards, by the names that UCX gives them."""
    return [f"{port.parts[-3]}:{port.name}" for port in sorted(Path("/sys/class/infiniband").glob("*/ports/*"))]


def _chosen_in_file(library: Library) -> bool:
    """Whether a file of Open MPI's settings chooses networks: what is to be used and what not exclude each other."""
    places = [Path(os.path.expanduser("~/.openmpi/mca-params.conf")), Path("/etc/openmpi/openmpi-mca-params.conf")]
    if library.path:
        places.append(Path(library.path).parent.parent / "etc" / "openmpi-mca-params.conf")
    for place in places:
        with suppress(OSError, UnicodeDecodeError):
            if re.search(r"^\s*btl_tcp_if_", place.read_text(), re.MULTILINE):
                return True
    return False


def hint(library: Library, environment: Mapping[str, str] = os.environ) -> str:
    """What to set where hosts do not reach each other, as a sentence's end."""
    found = interfaces()
    table = ", ".join(f"{name} {address}" for name, address in found.items()) or "none"
    if len(found) < 2:
        return f"this host's network is {table}: check the firewall and the routes to the other hosts"
    name = _likely(found, environment)
    network = found[name].network
    if library.form == "openmpi":
        option = f"`mpirun --mca btl_tcp_if_include {network}`"
    else:
        option = f"UCX_NET_DEVICES={name} FI_TCP_IFACE={name} in the environment"
    return f"this host's networks are {table}: have MPI use the one that leads to the other hosts, with {option}"


def _likely(found: Mapping[str, IPv4Interface], environment: Mapping[str, str]) -> str:
    """The interface over which the launcher came, else the one of this host's own name, else the first."""
    known = environment.get("SSH_CONNECTION", "").split()[2:3]
    with suppress(OSError, UnicodeError):
        known += [str(info[4][0]) for info in socket.getaddrinfo(os.uname().nodename, None, socket.AF_INET)]
    for address in known:
        for name, interface in found.items():
            if str(interface.ip) == address:
                return name
    proper = [name for name in found if not _BRIDGES.fullmatch(name)]
    return [*proper, *found][0]
