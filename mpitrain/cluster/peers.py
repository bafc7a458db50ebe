"""What this rank knows of every rank of the job, and who of them is late. No sockets and no clock of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpitrain.cluster.waiting import Activity, Stage

STALL_TIMEOUT, START_TIMEOUT = 60.0, 300.0
"""Seconds; what ``--stall-timeout`` and ``--start-timeout`` are by default."""

CONNECT_TIMEOUT = 60.0
"""Seconds for MPI's first messages, once all ranks have started."""


class Limits(NamedTuple):
    """How many seconds a rank may take without a sign of progress: in a run, and until its first step is done."""

    stall: float = STALL_TIMEOUT
    start: float = START_TIMEOUT

    def of(self, stage: Stage) -> float:
        """The limit in ``stage``."""
        if stage is Stage.CONNECT:
            return min(self.start, CONNECT_TIMEOUT)
        return self.stall if stage in (Stage.RUN, Stage.LEAVING) else self.start

    def option(self, stage: Stage) -> str:
        """The command-line option that sets it, with its value."""
        if stage is Stage.CONNECT and self.start > CONNECT_TIMEOUT:
            return f"limit {self.of(stage):g} s"
        name = "--stall-timeout" if stage in (Stage.RUN, Stage.LEAVING) else "--start-timeout"
        return f"{name} {self.of(stage):g}"


@dataclass
class Peer:
    """One rank of the job as this rank last heard of it.

    Args:
        rank: in the whole job.
        host: its host's name.
        leader: the lowest rank of its node.
        pid: its process there.
        born: that process's start, seconds since 1970; tells it from a later one of the same number.
        heard: this rank's clock at the last heartbeat.
        moved: this rank's clock at the last change of what it does.
    """

    rank: int
    host: str
    leader: int
    pid: int
    born: float
    heard: float
    moved: float
    beat: int = -1
    moves: int = -1
    stage: Stage = Stage.REST
    step: int = 0
    operation: str = "starting"
    ranks: tuple[int, ...] | None = None
    peak: int = 0
    ended: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"rank {self.rank} on {self.host}"

    def beaten(self, does: Activity, peak: int, now: float) -> None:
        """One more heartbeat of this process itself."""
        self.take([self.rank, self.beat + 1, does.moves, does.stage, does.step, does.operation, does.ranks, peak], now)

    def news(self) -> list[Any]:
        """This record as plain values, for others."""
        return [self.rank, self.beat, self.moves, self.stage, self.step, self.operation, self.ranks, self.peak]

    def take(self, news: list[Any], now: float) -> bool:
        """Take in what :meth:`news` gave; whether it was any news."""
        _, beat, moves, stage, step, operation, ranks, peak = news
        if beat <= self.beat:
            return False
        if moves != self.moves or stage != self.stage:
            self.moved = now
        self.heard, self.beat, self.moves, self.stage, self.step = now, beat, moves, Stage(stage), step
        self.operation, self.ranks, self.peak = operation, None if ranks is None else tuple(ranks), peak
        return True

    def excuse(self, seconds: float, now: float) -> None:
        """Count so many seconds as if they had not passed."""
        self.heard, self.moved = min(now, self.heard + seconds), min(now, self.moved + seconds)

    def waits_for(self, other: Peer) -> bool:
        """Whether it can go on only once ``other`` has acted."""
        return self.ranks is not None and other is not self and (not self.ranks or other.rank in self.ranks)


def is_news(value: object) -> bool:
    """Whether a value from outside is what :meth:`Peer.news` gives."""
    match value:
        case [int(), int(), int(), int(stage), int(), str(), None | list(), int()]:
            return stage in [*Stage]
    return False


class Late(NamedTuple):
    """A rank that keeps the others waiting: which, for how many seconds, and in what way, as a sentence's end."""

    peer: Peer
    seconds: float
    how: str
    silent: bool = False


def find_late(peers: Mapping[int, Peer], limits: Limits, now: float, fraction: float = 1.0) -> list[Late]:
    """The ranks that keep the job from going on.

    A rank is late when nothing has been heard of it; when it works without getting on; when others need it while it
    has ended its program or has not come to the run; or, all together, when everybody waits.

    Args:
        peers: all ranks of the job, this one too.
        limits: seconds.
        now: this rank's clock.
        fraction: of the limits, for a warning in time.
    """
    alive = [peer for peer in peers.values() if not peer.ended]
    late: list[Late] = []
    for peer in alive:
        limit = limits.of(peer.stage) * fraction
        quiet, still = now - peer.heard, now - peer.moved
        if quiet > limit:
            late.append(Late(peer, quiet, f"gives no sign of life (last seen in {_doing(peer)})", silent=True))
        elif peer.ranks is None and peer.stage in (Stage.START, Stage.RUN) and still > limit:
            late.append(Late(peer, still, f"does not come on in {_doing(peer)}"))
        elif peer.stage in (Stage.REST, Stage.LEAVING):
            patience = limits.start * fraction if peer.stage is Stage.REST else limits.stall * fraction / 3
            waiters = [p for p in alive if p.stage is not Stage.LEAVING and p.waits_for(peer)]
            # What is known of a waiter may be older than its last step: the time counts since this rank left, and as
            # far as the waiter's own heartbeats go.
            waited = max((p.heard - max(p.moved, peer.moved) for p in waiters), default=0.0)
            if waited > patience:
                how = "has not come to this run" if peer.stage is Stage.REST else "has ended its program"
                late.append(Late(peer, waited, f"{how}, but others need it"))
    if not late and alive and all(p.ranks is not None for p in alive):
        quickest = max(alive, key=lambda p: p.moved)
        if now - quickest.moved > max(limits.of(p.stage) for p in alive) * fraction:
            late = [Late(p, now - p.moved, f"waits in {_doing(p)}") for p in alive]
    return late


def describe_late(late: list[Late], peers: Mapping[int, Peer], limits: Limits) -> str:
    """One sentence about those who are late and those who wait for them, without a full stop."""
    told = ", ".join(f"{item.peer.name} {item.how} for {item.seconds:.0f} s" for item in late)
    missing = {item.peer.rank for item in late}
    waiters = [
        f"rank {p.rank} in {_doing(p)}"
        for p in peers.values()
        if p.rank not in missing and not p.ended and any(p.waits_for(item.peer) for item in late)
    ]
    waiting = f"; waiting for it: {', '.join(waiters[:8])}{', ...' * (len(waiters) > 8)}" if waiters else ""
    return f"{told}{waiting} ({limits.option(late[0].peer.stage)})"


def _doing(peer: Peer) -> str:
    return f"'{peer.operation}' at step {peer.step}" if peer.stage is Stage.RUN else f"'{peer.operation}'"
