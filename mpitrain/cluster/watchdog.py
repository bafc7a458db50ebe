"""The watchdog: a thread on every rank that notices when another is gone, silent or stuck, and ends the run.

It talks over sockets alone (``gossip``), so it stays awake whatever the main thread waits for. A peer's end shows at
once as the end of its socket. How the run then ends is in ``ending``.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from mpitrain.cluster import leaving, signals
from mpitrain.cluster.ending import FAREWELL, End, Ending, end_of_lost, say, speaks
from mpitrain.cluster.gossip import Gossip, Message
from mpitrain.cluster.last_words import LastWords
from mpitrain.cluster.launcher import Launch
from mpitrain.cluster.memory import oom_kills, peak_memory
from mpitrain.cluster.peers import Late, Limits, Peer, describe_late, find_late
from mpitrain.cluster.waiting import Stage
from mpitrain.cluster.waiting import now as activity
from mpitrain.errors import ExitCode, complain

log = logging.getLogger("mpitrain")

_SLOWEST_BEAT, _BEATS_IN_LIMIT = 1.0, 12
_ALMOST = 0.7  # of the limit
_GATHER = 0.005  # seconds for more bad news
_TURN, _TURNS = 2.0, 6.0  # seconds between two ranks' words, and at most
_PEERS_SHOW = 0.1  # seconds until the death of a peer has shown, when a launcher's signal comes first


class Watchdog(threading.Thread):
    """The thread; see the module.

    Args:
        launch: what the launcher says of this process.
        limits: seconds of patience.
    """

    def __init__(self, launch: Launch, limits: Limits) -> None:
        super().__init__(name="mpitrain watchdog", daemon=True)
        self.limits = limits
        self._launch = launch
        now = time.monotonic()
        self.me = Peer(launch.rank, os.uname().nodename, launch.rank, os.getpid(), leaving.own_birth(), now, now)
        self._peers = {self.me.rank: self.me}
        self._pages: Mapping[int, LastWords] = {}
        self.hint = ""
        """What the user can do if the ranks do not come together, as a sentence's end; empty once they have."""
        self.asked_to_stop = ""
        """The signal that asked for an agreed end; empty while none has."""
        self._ooms = oom_kills()
        self._gossip = Gossip(self._heard, self._news, self._hung_up)
        self.ending = Ending(launch, self._gossip)
        self._todo: deque[Callable[[], None]] = deque()
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)
        self._gossip.watch(self._woken, self._wake_up)
        self._lost: dict[int, bool] = {}
        self._warned: set[int] = set()
        self._signal: tuple[float, int, End | None] | None = None
        self._stopped = False
        self._next_beat = now
        self._parent = os.getppid()
        if launch.under_mpirun:
            signals.follow_parent()
        activity.stage_changed = lambda: self._post(self._beat_soon)
        signals.notice(self._wake, idle=lambda: activity.stage is Stage.REST)

    # What other threads call

    def join_job(
        self, roster: Iterable[Peer], links: Mapping[int, socket.socket], pages: Mapping[int, LastWords]
    ) -> None:
        """From now on watch all ranks of the job, over ``links``; ``pages`` are those of the node's neighbours."""
        peers = {peer.rank: peer for peer in roster}

        def joined() -> None:
            now = time.monotonic()
            for peer in peers.values():
                peer.heard = peer.moved = now
            self._peers, self.me, self._pages = peers, peers[self.me.rank], pages
            self._gossip.connect(links)

        self._post(joined)

    def fail(self, code: int, cause: str, seconds: float) -> NoReturn:
        """End the job because of this rank, which has said why."""
        step = activity.step
        self._post(lambda: self.ending.failed(End("failed", code, cause, self.me.rank, step, self.peaks()), self.me))
        time.sleep(seconds)
        os._exit(code)

    def give_way(self, seconds: float) -> None:
        """Wait whether an error of this rank turns out to be another's end: then the process ends in here."""
        if len(self._peers) > 1:
            time.sleep(seconds)

    def announce(self) -> None:
        """Tell the others at once what this rank does now, and return when that is said, or cannot be."""
        said = threading.Event()

        def announced() -> None:
            self._beat(time.monotonic())
            said.set()

        self._post(announced)
        said.wait(1.0)

    def close(self) -> None:
        """Tell the others that this rank has ended well, and end the thread."""
        self._post(self._say_goodbye)
        self.join(5.0)

    # The thread

    def run(self) -> None:
        """Listen, tell, judge, until closed."""
        wanted = time.monotonic()
        while not self._stopped:
            now = time.monotonic()
            overslept = now - wanted
            wanted = max(now, min(self._next_beat, self._signal_due))
            self._gossip.listen(wanted - now)
            now = time.monotonic()
            deaf = max(overslept, now - wanted)
            if deaf > self._period:
                # This process itself was stopped, or had no core: what it did not hear meanwhile proves nothing.
                for peer in self._peers.values():
                    peer.excuse(deaf, now)
            if now >= self._next_beat:
                self._beat(now)
            if self._lost:
                self._end_for_lost()
            self._judge(now)
            self._consider_signal(now)
        self._gossip.close()

    @property
    def _period(self) -> float:
        return min(_SLOWEST_BEAT, min(self.limits) / _BEATS_IN_LIMIT)

    def _beat(self, now: float) -> None:
        self._next_beat = now + self._period
        self.me.beaten(activity, peak_memory(), now)
        self._gossip.beat(self.me.news())

    def _beat_soon(self) -> None:
        self._next_beat = time.monotonic()

    def _post(self, action: Callable[[], None]) -> None:
        self._todo.append(action)
        with suppress(OSError):
            self._wake.send(b"\0")

    def _wake_up(self) -> None:
        with suppress(BlockingIOError):
            for number in self._woken.recv(4096):
                if number:
                    self._signalled(number)
        while self._todo:
            self._todo.popleft()()

    def _news(self, record: Message) -> bool:
        peer = self._peers.get(record[0])
        return peer is not None and peer is not self.me and peer.take(record, time.monotonic())

    def _hung_up(self, rank: int) -> None:
        peer = self._peers[rank]
        if not peer.ended:
            starved = peer.leader == self.me.leader and oom_kills() > self._ooms
            self._lost[rank] = starved
            self._read_page(peer)
            self._gossip.tell(["lost", rank, starved, peer.operation, peer.step])

    def _heard(self, message: Message) -> None:
        match message:
            case ["bye", rank] if rank in self._peers:
                self._peers[rank].ended = True
            case ["lost", rank, bool(starved), str(operation), int(step)] if rank in self._peers:
                self._lost[rank] = starved
                peer = self._peers[rank]
                peer.operation, peer.step = operation, step
            case ["stop", _, str(name)]:
                self._stop_asked(name)
            case ["end" | "fail", int(rank), str(status), int(code), str(cause), int(step), list(missing)]:
                if status != "interrupted" or self._signal is None:
                    self._finish(End(status, code, cause, rank, step, self.peaks(), frozenset(missing)), told=True)

    def _read_page(self, peer: Peer) -> None:
        """What a neighbour did in the end, or does; its last heartbeat may be older."""
        if (page := self._pages.get(peer.rank)) is not None:
            operation, step = page.read()
            if operation:
                peer.operation, peer.step = operation, step

    def _say_goodbye(self) -> None:
        self._gossip.tell(["bye", self.me.rank])
        self._gossip.flush(FAREWELL)
        self._stopped = True

    # Judging

    def _judge(self, now: float) -> None:
        for rank in self._pages:
            if now - self._peers[rank].heard > 2 * self._period:
                self._read_page(self._peers[rank])
        # Before the ranks know each other the lower ones speak first, and their end keeps the others from it.
        alone = len(self._peers) < self._launch.size
        late = find_late(self._peers, self.limits, now - min(_TURN * self.me.rank, _TURNS) * alone)
        if late:
            # Who fell silent together was last heard a few beats apart.
            told = {item.peer.rank for item in late}
            almost = find_late(self._peers, self.limits, now, _ALMOST)
            late += [item for item in almost if item.silent and item.peer.rank not in told]
            cause = f"{describe_late(late, self._peers, self.limits)}: the run ends{self._hinted}"
            first = late[0].peer
            missing = frozenset(item.peer.rank for item in late if item.silent)
            end = End("stalled", ExitCode.STALLED, cause, first.rank, first.step, self.peaks(), missing)
            self._finish(end, late=late)
        early = find_late(self._peers, self.limits, now, 1 / 3)
        ranks = {item.peer.rank for item in early}
        fresh = [item for item in early if item.peer.rank not in self._warned]
        self._warned = (self._warned & ranks) | {item.peer.rank for item in fresh}
        if fresh and speaks(self.me, self._peers, ranks) and not (alone and self.me.rank > 1):
            sentence = describe_late(fresh, self._peers, self.limits)
            for option in ("--", "limit"):
                sentence = sentence.replace(f" ({option}", f": the run goes on for now (ends at {option}")
            say(f"warning: {sentence}{self._hinted}")

    @property
    def _hinted(self) -> str:
        return f"; {self.hint}" if self.hint else ""

    def _end_for_lost(self) -> None:
        deadline = time.monotonic() + _GATHER
        while (left := deadline - time.monotonic()) > 0:
            self._gossip.listen(left)
        self._finish(end_of_lost(self._lost, self.me, self._peers, self.peaks()))

    def peaks(self) -> dict[int, int]:
        """The most bytes that each rank was known to hold."""
        return {peer.rank: peer.peak for peer in self._peers.values()} | {self.me.rank: peak_memory()}

    def _finish(self, end: End, told: bool = False, late: Sequence[Late] = ()) -> NoReturn:
        self.ending.finish(end, self.me, self._peers, told, late)

    # Signals

    def _signalled(self, number: int) -> None:
        if activity.stage in (Stage.REST, Stage.LEAVING) or number not in signals.NOTICED:
            return
        if number == signals.SIGINT and self.asked_to_stop == signals.name_of(number):
            os._exit(128 + number)
        if self._signal is None:
            end = self._interrupted(number)
            self._signal = (time.monotonic(), number, end)
            if end is not None:
                self.ending.foresee(end)

    def _interrupted(self, number: int) -> End | None:
        """The end, where SIGKILL follows within a quarter of a second: no time to agree on anything."""
        if number == signals.SIGUSR1 or not self._launch.under_mpirun:
            return None
        why = f"by {signals.name_of(number)}" if os.getppid() == self._parent else "because its launcher is gone"
        cause = f"{self.me.name} was ended {why} in '{activity.operation}' at step {activity.step}{self._hinted}"
        return End("interrupted", 128 + number, cause, None, activity.step, self.peaks())

    @property
    def _signal_due(self) -> float:
        return self._signal[0] + _PEERS_SHOW if self._signal else math.inf

    def _consider_signal(self, now: float) -> None:
        """A launcher that ends the job after a rank's death sends signals too, so the peers have the first word."""
        if self._signal is None or now < self._signal_due:
            return
        (_, number, end), self._signal = self._signal, None
        name = signals.name_of(number)
        if end is not None:
            # In MPI_Init there is no run yet: whoever ended the launcher knows, or another rank has said why.
            if activity.operation != "MPI_Init":
                complain(end.cause)
            if speaks(self.me, self._peers):
                self.ending.advise()
            self.ending.tell("end", end, self.me)
            self._finish(end, told=True)
        self._gossip.tell(["stop", "all", name])
        self._stop_asked(name)

    def _stop_asked(self, name: str) -> None:
        """The step at which the run ends is agreed upon in the exchange's own messages."""
        if not self.asked_to_stop:
            self.asked_to_stop = name
            log.info("%s asks for the end of the run", name)
            if speaks(self.me, self._peers):
                say(f"{name}: the run ends after the step under way")


current: Watchdog | None = None
"""This process's, once :func:`start` was called and until :func:`stop`."""


def start(launch: Launch, limits: Limits) -> Watchdog:
    """Start the watchdog of this process, or give the one that runs other limits."""
    global current
    if current is None:
        current = Watchdog(launch, limits)
        current.start()
    current.limits = limits
    return current


def stop() -> None:
    """End the watchdog, if one runs, in peace."""
    global current
    if current is not None:
        current.close()
        current = None


def announce() -> None:
    """:meth:`Watchdog.announce` of this process's watchdog, if it has one."""
    if current is not None:
        current.announce()


def on_end(record: Callable[[End], None]) -> Callable[[], None]:
    """``Ending.on_end`` of this process's watchdog, if it has one."""
    return current.ending.on_end(record) if current is not None else lambda: None


def advise(advice: Callable[[], str]) -> None:
    """Have ``advice()`` said after the reason of an early end: a sentence, or nothing. See ``Ending.advice``."""
    if current is not None:
        current.ending.advice = advice


def known_peaks() -> Mapping[int, int]:
    """:meth:`Watchdog.peaks` of this process's watchdog, if it has one."""
    return current.peaks() if current is not None else {}


def asked_to_stop() -> str:
    """The signal that asked for an agreed end of the run; empty while none has."""
    return current.asked_to_stop if current is not None else ""
