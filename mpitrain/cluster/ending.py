"""How a run ends before its time: one rank says why, each has its files say so, and all leave (``leaving``).

The rank that speaks is the lowest one that still can.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from mpitrain.cluster import leaving
from mpitrain.cluster.gossip import Gossip
from mpitrain.cluster.launcher import Launch
from mpitrain.cluster.memory import gigabytes, node_memory
from mpitrain.cluster.peers import Late, Peer
from mpitrain.cluster.waiting import now
from mpitrain.errors import ExitCode, complain

_SPEAK, _RECORD = 1.0, 2.0  # seconds: for another's word, for the files
_ADVICE = 0.3  # seconds to find out what to advise
_SWITCH = 1e-4  # seconds that the main thread keeps Python's lock from then on: what it does is lost in any case
_LAUNCHER_ACTS = 1.0  # seconds that a launcher needs to end the job with the failed rank's own code
_ABORT_ACTS = _RECORD + _LAUNCHER_ACTS  # the same where that takes another rank's MPI_Abort, after its own files
FAREWELL = 1.0
"""Seconds for a last word to a neighbour that does not listen."""


@dataclass(frozen=True)
class End:
    """Why a run ended before its time.

    Args:
        status: for ``summary.json``: failed, stalled, interrupted.
        code: what this process leaves with.
        cause: one sentence.
        rank: the one that it began with, if one.
        step: where that rank was.
        peaks: rank → the most bytes that it was known to hold.
        missing: ranks that can write nothing any more.
    """

    status: str
    code: int
    cause: str
    rank: int | None
    step: int
    peaks: Mapping[int, int]
    missing: frozenset[int] = frozenset()


class Ending:
    """What the watchdog's thread does once it knows that the run must end.

    Args:
        launch: what the launcher says of this process.
        gossip: to the other ranks.
    """

    def __init__(self, launch: Launch, gossip: Gossip) -> None:
        self._launch, self._gossip = launch, gossip
        self._records: list[Callable[[End], None]] = []
        self._foreseen: End | None = None
        self.advice: Callable[[], str] = lambda: ""
        """What a person can do after an early end, in a sentence; empty for nothing. It may ask the file system."""

    def on_end(self, record: Callable[[End], None]) -> Callable[[], None]:
        """Have ``record`` called, on another thread, when the run ends early; returns what takes that back."""
        self._records.append(record)
        return lambda: self._records.remove(record)

    def advise(self) -> None:
        """Say what a person can do now; a file system that hangs keeps nobody."""
        found: list[str] = []

        def ask() -> None:
            with suppress(Exception):
                found.append(self.advice())

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_ADVICE)
        if found and found[0]:
            say(found[0])

    def tell(self, kind: str, end: End, me: Peer) -> None:
        """Have the other ranks end too; ``kind`` is ``end``, or ``fail`` where this rank itself has failed."""
        rank = me.rank if end.rank is None else end.rank
        self._gossip.tell([kind, rank, end.status, int(end.code), end.cause, end.step, sorted(end.missing)])

    def foresee(self, end: End) -> None:
        """Have the files say ``end`` already, though a better reason may still come: SIGKILL may come first."""
        sys.setswitchinterval(_SWITCH)
        self._record(end)
        self._foreseen = end

    def failed(self, end: End, me: Peer) -> NoReturn:
        """This rank has failed, and has said why."""
        self.tell("fail", end, me)
        self.advise()
        self._gossip.flush(FAREWELL)
        self._record(end)
        leaving.leave(end.code, self._launch)

    def finish(
        self, end: End, me: Peer, peers: Mapping[int, Peer], told: bool = False, late: Sequence[Late] = ()
    ) -> NoReturn:
        """Say why, record it, and leave.

        Args:
            end: why.
            me: this rank.
            peers: all ranks.
            told: whether somebody has said it already.
            late: who is still there though the run ends without it.
        """
        leads = speaks(me, peers, end.missing | {item.peer.rank for item in late})
        speaking = not told and leads
        if not told and not speaking:
            speaking = not self._told_within(_SPEAK)
        if speaking:
            complain(end.cause)
            self.tell("end", end, me)
            self.advise()
        near = [peer for peer in peers.values() if peer.leader == me.leader]
        cut_off = _cut_off(end, peers)
        if cut_off and me.rank == min((p.rank for p in near if p.rank not in end.missing), default=me.rank):
            leaving.end_launcher()
        self._record(end)
        self._gossip.flush()
        # After a signal each rank has spoken for itself, and one is to end the job all the same.
        ends_job = leads if end.status == "interrupted" else speaking
        aborts = ends_job and self._launch.needs_abort and not (cut_off and self._launch.under_mpirun)
        if not aborts and len(peers) > 1 and (end.status != "interrupted" or self._launch.needs_abort):
            # A launcher that kills at the first exit leaves no time to write; Open MPI's is about to kill in any case.
            # Ranks that do not know each other yet have nothing to write, and one of them is to speak, not the next.
            time.sleep(_ABORT_ACTS if self._launch.needs_abort else _LAUNCHER_ACTS)
        stuck = [item.peer for item in late if item.peer in near and item.peer is not me]
        leaving.leave(end.code, self._launch, aborts, stuck)

    def _told_within(self, seconds: float) -> bool:
        """Whether another rank ends the run in the meantime; if one does, this rank leaves there and then."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._gossip.listen(left)
        return False

    def _record(self, end: End) -> None:
        """Have the run's files say why it ended; a file system that hangs does not keep the process."""
        if end is self._foreseen:
            return

        def write() -> None:
            for record in [*self._records]:
                with suppress(Exception):
                    record(end)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        writer.join(_RECORD)


def end_of_lost(lost: Mapping[int, bool], me: Peer, peers: Mapping[int, Peer], peaks: Mapping[int, int]) -> End:
    """What is to be said of ranks whose processes are gone.

    Args:
        lost: rank → whether memory ran out on its host.
        me: this rank.
        peers: all ranks.
        peaks: see :class:`End`.
    """
    ranks = sorted(lost)
    starved = any(lost.values())
    gone = ", ".join(_last_seen(peers[rank]) for rank in ranks)
    if starved:
        node = f"the node has {gigabytes(node_memory())}"
        why = f"the kernel killed a process on that host because memory ran out ({node})"
    else:
        why = "killed, crashed, or left without a word"
    first = peers[ranks[0]]
    code = ExitCode.OUT_OF_MEMORY if starved else ExitCode.PEER_FAILED
    cause = f"{gone} {'is' if len(ranks) == 1 else 'are'} gone: {why}"
    # What is known of the lost is as old as its last heartbeat; where this rank is tells how far the run is.
    does = "is" if now.ranks is None else "waits"
    cause += f"; rank {me.rank} {does} in '{now.operation}' at step {now.step}"
    return End("failed", code, cause, first.rank, first.step, peaks, frozenset(ranks))


def _last_seen(peer: Peer) -> str:
    return f"{peer.name} (last seen in '{peer.operation}' at step {peer.step}, peak memory {gigabytes(peer.peak)})"


def speaks(me: Peer, peers: Mapping[int, Peer], missing: Iterable[int] = ()) -> bool:
    """Whether ``me`` is the lowest rank that can still speak."""
    there = {peer.rank for peer in peers.values() if not peer.ended}
    return me.rank == min(there - set(missing) or there)


def say(text: str) -> None:
    """A line for people, from a thread that must not wait for a lock of Python's own streams."""
    with suppress(OSError, ValueError):
        os.write(2, f"mpitrain: {text}\n".encode())


def _cut_off(end: End, peers: Mapping[int, Peer]) -> bool:
    """Whether whole hosts are silent, so that the launcher would wait for them, or this one cannot be reached."""
    if end.status != "stalled":
        return False
    hosts: dict[int, list[int]] = {}
    for peer in peers.values():
        hosts.setdefault(peer.leader, []).append(peer.rank)
    return any(end.missing.issuperset(ranks) for ranks in hosts.values())
