"""Who does what in a run: which ranks hold parameters, which compute, who speaks and who keeps the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from mpitrain.errors import InputError

if TYPE_CHECKING:
    from mpitrain.cluster.world import World


@dataclass(frozen=True)
class Roles:
    """The ranks of one run by role; in all-reduce there are no servers.

    The *chief* is the lowest worker: it has the model, and speaks for the run. The *keeper* has the run directory.
    """

    servers: tuple[int, ...]
    workers: tuple[int, ...]
    keeper: int = 0

    @property
    def chief(self) -> int:
        """The lowest worker."""
        return self.workers[0]

    def serves(self, rank: int) -> bool:
        """Whether ``rank`` holds a shard of the parameters."""
        return rank in self.servers

    def works(self, rank: int) -> bool:
        """Whether ``rank`` computes gradients."""
        return rank in self.workers

    def by_node(self, world: World, cores: Sequence[int], threads: Sequence[int]) -> list[str]:
        """A line for each node: who serves and who works there, with which cores.

        Args:
            world: all ranks.
            cores: of each rank's node.
            threads: of each rank.
        """
        lines = []
        for leader in sorted(set(world.leaders)):
            ranks = [rank for rank, own in enumerate(world.leaders) if own == leader]
            parts = []
            for name, among in (("server", self.servers), ("worker", self.workers)):
                if here := tuple(rank for rank in ranks if rank in among):
                    each = sorted({threads[rank] for rank in here})
                    count = "-".join(map(str, dict.fromkeys((each[0], each[-1]))))
                    part = f"{_many(len(here), name)} (rank{'s' * (len(here) > 1)} {_spans(here)})"
                    parts.append(part if name == "server" else f"{part} with {_many(each[-1], 'thread', count)} each")
            lines.append(f"{world.hosts[leader]}: {_many(cores[leader], 'core')}, {', '.join(parts)}")
        return lines

    def describe(self) -> str:
        """One line for people."""
        workers = f"{len(self.workers)} worker{'s' * (len(self.workers) > 1)} (ranks {_spans(self.workers)})"
        if not self.servers:
            return f"{workers}, all-reduce"
        return f"{len(self.servers)} server{'s' * (len(self.servers) > 1)} (ranks {_spans(self.servers)}), {workers}"


def assign(mode: str, size: int, servers: int, leaders: tuple[int, ...] = ()) -> Roles:
    """The roles of ``size`` ranks in ``mode``: ranks 0..servers-1 serve where the mode has servers.

    Args:
        mode: of the run.
        size: number of ranks.
        servers: how many of them serve.
        leaders: to spread the servers, the lowest rank of each rank's node: then each node gives its lowest ranks, one
            node after another in turn. Rank 0 serves in any case.

    Raises:
        InputError: where no worker, or no server, would be left.
    """
    if mode == "allreduce":
        return Roles((), tuple(range(size)))
    if size == 1:
        raise InputError(
            f"--mode {mode} needs a server and a worker but there is one rank: start at least two, as in "
            f"`mpirun -np 3 python -m mpitrain --mode {mode}`, or use --mode allreduce"
        )
    if not 1 <= servers < size:
        raise InputError(
            f"--servers is {servers} but must lie between 1 and {size - 1}, so that at least one of {size} ranks works"
        )
    serving = _spread(leaders, servers) if leaders else tuple(range(servers))
    return Roles(serving, tuple(rank for rank in range(size) if rank not in serving))


def _spread(leaders: tuple[int, ...], servers: int) -> tuple[int, ...]:
    nodes: dict[int, list[int]] = {}
    for rank, leader in enumerate(leaders):
        nodes.setdefault(leader, []).append(rank)
    turns = zip_longest(*(nodes[leader] for leader in sorted(nodes)))
    return tuple(sorted([rank for turn in turns for rank in turn if rank is not None][:servers]))


def _many(count: int, what: str, shown: str = "") -> str:
    return f"{shown or count} {what}{'s' * (count != 1)}"


def _spans(ranks: tuple[int, ...]) -> str:
    contiguous = ranks == tuple(range(ranks[0], ranks[-1] + 1))
    return (
        (f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])) if contiguous else ", ".join(map(str, ranks))
    )
