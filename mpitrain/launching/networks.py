"""Which network hosts with several interfaces have in common.

MPI tries them all, and a bridge that exists on every host but leads nowhere, as docker0 does, lets it wait for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, ip_address, ip_network

from mpitrain.errors import InputError
from mpitrain.launching.probe import Probe


def choose(probes: Sequence[Probe], known: Sequence[frozenset[str]], asked: str | None) -> tuple[str, str] | None:
    """The interface of the first host, and the network as ``10.0.0.0/24``, that all hosts share.

    Args:
        probes: of the hosts.
        known: of each, the addresses to which its name resolves here.
        asked: an interface or a network that the user names; None chooses where there is a choice.

    Returns:
        None where every host has one network only, so that there is nothing to choose.

    Raises:
        InputError: no network is shared, or not the one asked for.
    """
    tables = [_networks(probe) for probe in probes]
    if asked is not None:
        wanted = _asked(asked, tables[0])
        for probe, table in zip(probes, tables, strict=True):
            if wanted not in table:
                has = ", ".join(f"{name} {network}" for network, (name, _) in table.items()) or "none"
                raise InputError(f"--network {asked} is not on {probe.host}, whose networks are: {has}")
        return tables[0][wanted][0], str(wanted)
    if len(probes) < 2 or all(len(table) < 2 for table in tables):
        return None
    shared = [network for network in tables[0] if all(network in table for table in tables)]
    # Where two hosts have one and the same address on it, it is a network inside of each.
    shared = [n for n in shared if len({table[n][1] for table in tables}) == len(tables)]
    named = [n for n in shared if any(ip_address(a) in n for a in known[-1] if ":" not in a)]
    best = (named or shared)[:1]
    return (tables[0][best[0]][0], str(best[0])) if best else None


def _networks(probe: Probe) -> dict[IPv4Network, tuple[str, IPv4Address]]:
    found: dict[IPv4Network, tuple[str, IPv4Address]] = {}
    for name, (address, netmask) in probe.networks.items():
        interface = IPv4Interface(f"{address}/{netmask}")
        found.setdefault(interface.network, (name, interface.ip))
    return found


def _asked(text: str, table: dict[IPv4Network, tuple[str, IPv4Address]]) -> IPv4Network:
    for network, (name, _) in table.items():
        if name == text:
            return network
    try:
        return IPv4Network(ip_network(text))
    except ValueError:
        raise InputError(f"--network {text} is neither an interface of the first host nor like 10.0.0.0/24") from None
