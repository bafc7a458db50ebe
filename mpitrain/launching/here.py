"""What this machine knows of hosts: their addresses, and whether one of them is this machine."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import psutil

from mpitrain.cluster.cores import visible_cores
from mpitrain.launching.hostfile import Hostfile


def addresses(host: str) -> frozenset[str]:
    """The IPv4 and IPv6 addresses of a host; empty where its name does not resolve."""
    try:
        return frozenset(str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return frozenset()


def own_addresses() -> frozenset[str]:
    """The addresses of all interfaces of this machine."""
    return frozenset(a.address.split("%")[0] for found in psutil.net_if_addrs().values() for a in found)


def is_here(host: str) -> bool:
    """Whether a host is this machine."""
    return host == socket.gethostname() or bool(addresses(host) & own_addresses())


def check_names(hosts: Hostfile) -> None:
    """Refuse hosts that do not resolve, and one host under two names.

    Raises:
        InputError: with the place of the first.
    """
    seen: dict[frozenset[str], str] = {}
    # A name server that does not answer takes seconds for each.
    with ThreadPoolExecutor(16) as threads:
        resolved = list(threads.map(addresses, (entry.host for entry in hosts.entries)))
    for entry, found in zip(hosts.entries, resolved, strict=True):
        if not found:
            raise hosts.fault(
                entry,
                f"the name {entry.host} does not resolve here: check its spelling, /etc/hosts and DNS",
            )
        if found in seen:
            raise hosts.fault(entry, f"{entry.host} is the same host as {seen[found]} above: name each host once")
        seen[found] = entry.host


def check_cores(hosts: Hostfile) -> None:
    """Refuse more slots than cores on this machine; of the others nothing is known.

    Raises:
        InputError: with the place.
    """
    cores = len(visible_cores())
    for entry in hosts.entries:
        if entry.slots is not None and entry.slots > cores and is_here(entry.host):
            raise hosts.fault(
                entry,
                f"{entry.host} has {entry.slots} slots but {cores} cores that this process may use: "
                "give it no more slots than cores, or accept slower ranks with --oversubscribe",
            )
