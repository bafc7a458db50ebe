"""Who does what in a run: which ranks hold parameters, which compute, who speaks and who keeps the files."""

from __future__ import annotations

from dataclasses import dataclass

from mpitrain.errors import InputError


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

    def describe(self) -> str:
        """One line for people."""
        workers = f"{len(self.workers)} worker{'s' * (len(self.workers) > 1)} (ranks {_spans(self.workers)})"
        if not self.servers:
            return f"{workers}, all-reduce"
        return f"{len(self.servers)} server{'s' * (len(self.servers) > 1)} (ranks {_spans(self.servers)}), {workers}"


def assign(mode: str, size: int, servers: int) -> Roles:
    """The roles of ``size`` ranks in ``mode``: ranks 0..servers-1 serve where the mode has servers.

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
    return Roles(tuple(range(servers)), tuple(range(servers, size)))


def _spans(ranks: tuple[int, ...]) -> str:
    contiguous = ranks == tuple(range(ranks[0], ranks[-1] + 1))
    return (
        (f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])) if contiguous else ", ".join(map(str, ranks))
    )
