"""From the hosts of a TensorFlow 1 parameter-server job to a host file.

There every process was started with its role and a port; here ranks fill the hosts of a file from the top, and the
first of them are the servers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.errors import InputError
from mpitrain.launching.hostfile import Entry, Hostfile, parse


@dataclass(frozen=True)
class Job:
    """A TF1 job as ranks.

    Args:
        servers: the host of each parameter server.
        workers: the host of each worker.
    """

    servers: tuple[str, ...]
    workers: tuple[str, ...]

    @classmethod
    def of(cls, ps_hosts: str, worker_hosts: str) -> Job:
        """From the values of ``--ps_hosts`` and ``--worker_hosts``.

        Raises:
            InputError: one of them is not a list of HOST:PORT.
        """
        return cls(tuple(_hosts(ps_hosts, "--ps-hosts")), tuple(_hosts(worker_hosts, "--worker-hosts")))

    @property
    def ranks(self) -> tuple[str, ...]:
        """The host of each rank."""
        return self.servers + self.workers

    @property
    def hosts(self) -> Hostfile:
        """One entry a host, in the order in which they come up."""
        comments = (
            f"# {_many(len(self.servers), 'parameter server')} and {_many(len(self.workers), 'worker')}: "
            "ranks fill this file from the top, and the first are the servers.",
        )
        counts = Counter(self.ranks)
        entries = [Entry(host, count) for host, count in counts.items()]
        return Hostfile((Entry(entries[0].host, entries[0].slots, comments=comments), *entries[1:]))

    @property
    def by_node(self) -> bool:
        """Whether the ranks get the hosts that they had when dealt to the hosts in turn, and not when filling them."""
        return _fill(self.hosts) != self.ranks == _deal(self.hosts)

    @property
    def moved(self) -> str:
        """Which roles cannot stay on their hosts; empty where all can."""
        got = _deal(self.hosts) if self.by_node else _fill(self.hosts)
        roles = [f"server {i}" for i in range(len(self.servers))] + [f"worker {i}" for i in range(len(self.workers))]
        return ", ".join(
            f"{role} on {now} instead of {then}"
            for role, then, now in zip(roles, self.ranks, got, strict=True)
            if then != now
        )


def _fill(hosts: Hostfile) -> tuple[str, ...]:
    return tuple(entry.host for entry, ranks in hosts.ranks() for _ in ranks)


def _deal(hosts: Hostfile) -> tuple[str, ...]:
    """One rank to each host in turn, as long as it has slots."""
    rounds = max(len(ranks) for _, ranks in hosts.ranks())
    return tuple(entry.host for i in range(rounds) for entry, ranks in hosts.ranks() if i < len(ranks))


def _hosts(text: str, option: str) -> Sequence[str]:
    hosts = []
    column = 1
    for part in text.split(","):
        if not (match := re.fullmatch(r"([^:\s]+)(?::([0-9]{1,5}))?", part)):
            raise InputError(f"{option}:{column}: {part!r} is not HOST:PORT: give a list as in a:2222,b:2222")
        # One grammar of names for all host files.
        parse(match[1], option)
        hosts.append(match[1])
        column += len(part) + 1
    return hosts


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
