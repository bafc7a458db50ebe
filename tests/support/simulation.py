"""Servers and workers without MPI: messages wait on links until a random scheduler delivers them.

The order within a link is kept, as MPI keeps it between two ranks; everything else is up to chance: how long who
computes, which link is slow, when a send is noticed to be complete.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from mpitrain.exchange.base import Plan, Totals
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.registry import MODES
from mpitrain.exchange.servers.messages import Action, Answer, Codec, Entry, Held, Over, Push, Ready
from mpitrain.exchange.servers.server import Outgoing, Server
from mpitrain.exchange.servers.shards import cut
from mpitrain.exchange.servers.slots import SharedSlots, Slots, TravellingSlots
from mpitrain.exchange.tickets import Ticket, TicketBook
from mpitrain.parameters.layout import Layout
from mpitrain.parameters.numpy_optimizers import SGD

LAYOUT = Layout.of([("a", (20,)), ("b", (3, 7)), ("c", (1,))])
SUMS = 3


@dataclass(frozen=True)
class Scenario:
    """What is simulated.

    ``bad`` is the probability that a gradient holds NaN, ``seed`` decides every chance; ``stops`` says of ranks
    after how many events they are asked to stop.
    """

    policy: Policy
    servers: int
    book: TicketBook
    cuts: tuple[int, ...]
    max_bad: int
    bad: float
    seed: int
    stops: tuple[tuple[int, int], ...] = ()
    nodes: int = 0
    """Over how many nodes servers and workers are dealt out; within one they share memory. 0: nobody shares any."""

    @property
    def workers(self) -> int:
        return self.policy.workers

    def near(self, server: int, worker: int) -> bool:
        """Whether a server and a worker, by rank, share memory."""
        return bool(self.nodes) and server % self.nodes == (worker - self.servers) % self.nodes

    @property
    def plan(self) -> Plan:
        return Plan(self.book, self.cuts, lambda version: 0.1 / (1 + version), SUMS, 2, False, self.max_bad)


def gradient(parameters: np.ndarray, worker: int, ticket: int) -> np.ndarray:
    """Depends on the parameters that were pulled, so that a wrong version shows in every later bit."""
    noise = np.random.default_rng((worker, ticket)).normal(size=LAYOUT.size).astype(np.float32)
    return 0.1 * parameters + noise


class WatchedServer(Server):
    """A server that keeps its log."""

    log: list[Entry]

    def _execute(self, entry: Entry) -> list[Outgoing]:
        self.log.append(entry)
        return super()._execute(entry)


@dataclass(eq=False)
class Sending:
    """An answer under way with a slot: as it was, and as it is."""

    server: int
    worker: int
    slot: int
    was: np.ndarray
    memory: np.ndarray
    received: bool = False
    surely_sent: bool = False


@dataclass
class Worker:
    """One worker's side of the protocol; ``phase`` is ask, wait, compute, meet or done."""

    rank: int
    parameters: np.ndarray
    phase: str = "ask"
    ticket: Ticket | None = None
    version: int = -1
    totals: Totals = field(default_factory=lambda: Totals.empty(SUMS))
    over: bool = False
    lane: int = 0
    pulled: np.ndarray | None = None
    """Of parameters that lie in shared memory: as they were when the worker was pointed to them."""
    state: np.ndarray = field(default_factory=lambda: np.empty(0))
    answers: dict[int, Answer] = field(default_factory=dict)
    early: list[tuple[int, Answer | Over, np.ndarray | None, Sending | None]] = field(default_factory=list)
    """Answers about the next ticket but one, or that came while the worker computed, and who sent them."""
    culprit: tuple[int, int] | None = None


class Simulation:
    """Runs a scenario to its end; what happened stays in the attributes."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.random = scenario, random.Random(scenario.seed)
        servers, workers = range(scenario.servers), range(scenario.servers, scenario.servers + scenario.workers)
        self.shards = cut(LAYOUT, scenario.servers, True)
        self.initial = np.random.default_rng(0).normal(size=LAYOUT.size).astype(np.float32)
        depth = scenario.policy.depth
        self.codec = Codec(scenario.workers, SUMS, 2, depth=depth)
        count = depth * scenario.workers + 2
        self.slots = [[np.zeros(LAYOUT.size, np.float32) for _ in range(count)] for _ in range(scenario.nodes)]
        written = {w: [np.zeros(LAYOUT.size, np.float32) for _ in range(depth)] for w in workers}
        self.gradients = {
            s: {
                w: [v[self.shards[s]] if scenario.near(s, w) else v[self.shards[s]].copy() for v in vectors]
                for w, vectors in written.items()
            }
            for s in servers
        }
        make = MODES[scenario.policy.mode]
        assert make is not None
        self.servers: dict[int, WatchedServer] = {}
        for s in servers:
            decider = make(scenario.policy, tuple(workers), scenario.plan) if s == 0 else None
            own = self.initial[self.shards[s]]
            keep = scenario.policy.compensation is not None
            slots: Slots = TravellingSlots(count, own.size, own.dtype, keep)
            near = [w for w in workers if scenario.near(s, w)]
            if near:
                slots = SharedSlots(self._slots_of(s), self.shards[s], near, partial(self._progress, s))
            slots[0][:] = own
            optimizer = SGD(own.size, own.dtype)
            rules = scenario.policy, False, decider
            self.servers[s] = WatchedServer(s, tuple(servers), self.gradients[s], slots, optimizer, *rules)
            self.servers[s].log = []
        self.workers = {w: Worker(w, np.zeros(LAYOUT.size, np.float32)) for w in workers}
        self.links: dict[tuple[int, int], deque] = {}
        self.pace = {}
        self.sendings: list[Sending] = []
        self.meeting: set[int] = set()
        self.ended: set[int] = set()
        self.met: list[int] = []
        self.handed: list[tuple[int, Ticket]] = []
        self.pushes: dict[tuple[int, int], list[Push]] = {}
        """By worker and ticket; a ticket that came late may come to the same worker again."""
        self.moment = 0
        self.ends_with: Action | None = None
        self.stop_known: int | None = None
        """How many entries server 0's log had when it first heard that the run is to stop."""

    def run(self) -> Simulation:
        """Until everybody has ended."""
        everyone = len(self.servers) + len(self.workers)
        while len(self.ended) < everyone:
            events = self._events()
            assert events, f"nobody can go on: {[(w.rank, w.phase) for w in self.workers.values()]}"
            self.moment += 1
            event = self.random.choices(events, [self._pace(e) for e in events])[0]
            match event:
                case ("deliver", link):
                    self._deliver(*link)
                case ("work", worker):
                    self._work(self.workers[worker])
                case ("meet", _):
                    self._meet()
        return self

    def _events(self) -> list[tuple]:
        events: list[tuple] = [
            ("deliver", link)
            for link, waiting in self.links.items()
            if waiting and link[1] not in self.meeting and link[1] not in self.ended
        ]
        events += [("work", w.rank) for w in self.workers.values() if w.phase in ("ask", "compute")]
        if len(self.meeting) == len(self.servers) + len(self.workers):
            events.append(("meet", 0))
        return events

    def _pace(self, event: tuple) -> float:
        """How eager an event is: fixed for each link and worker, from sluggish to prompt."""
        return self.pace.setdefault(event, 10 ** self.random.uniform(-2, 1))

    def _send(
        self, source: int, target: int, message: object, data: np.ndarray | None = None, sending: Sending | None = None
    ) -> None:
        vector = self.codec.encode(message)  # type: ignore[arg-type]
        assert vector.size <= self.codec.length
        self.links.setdefault((source, target), deque()).append(
            (vector, None if data is None else data.copy(), sending)
        )

    def _deliver(self, source: int, target: int) -> None:
        vector, data, sending = self.links[source, target].popleft()
        message = self.codec.decode(vector)
        if target in self.workers:
            worker = self.workers[target]
            worker.early.append((source, message, data, sending))
            self._read(worker)
            return
        server = self.servers[target]
        self._settle(target)
        for sending in self.sendings:
            if (sending.server, sending.worker) == (target, source) and sending.received:
                # Its receiver has gone on, so from now on MPI's test of this send succeeds.
                sending.surely_sent = True
        if data is not None:
            self.gradients[target][source][message.lane][:] = data
        if isinstance(message, Ready | Push | Held):
            message.stop |= self._asked(target)
            if message.stop and not target and self.stop_known is None:
                self.stop_known = len(server.log)
        for out in server.on(message):
            memory = None if out.slot is None else server.slot(out.slot)
            if memory is None:
                self._send(target, out.rank, out.message)
            else:
                sending = Sending(target, out.rank, out.slot, memory.copy(), memory)
                self.sendings.append(sending)
                self._send(target, out.rank, out.message, memory, sending)
        self._check_slots()
        if server.reached is Action.FAIL:
            self.ended.add(target)
        elif server.reached is not Action.RUN:
            self.meeting.add(target)

    def _slots_of(self, server: int) -> list[np.ndarray]:
        return self.slots[server % self.scenario.nodes]

    def _progress(self, server: int) -> None:
        """What ends a wait for MPI to tell of a send: its receiver must have it."""
        done = [s for s in self.sendings if s.server == server and s.received]
        assert done, "a slot is taken for free while its answer is under way"
        for sending in done:
            self.servers[server].released(sending.slot)
            self.sendings.remove(sending)

    def _asked(self, rank: int) -> bool:
        return any(rank == asked and self.moment > when for asked, when in self.scenario.stops)

    def _settle(self, server: int) -> None:
        for sending in [s for s in self.sendings if s.server == server]:
            if sending.surely_sent or self.random.random() < 0.3:
                self.servers[server].released(sending.slot)
                self.sendings.remove(sending)

    def _check_slots(self) -> None:
        for worker in self.workers.values():
            if worker.phase in ("compute", "meet") and worker.pulled is not None:
                assert np.array_equal(worker.pulled, worker.parameters), "a slot was overwritten while it was read"
        for sending in self.sendings:
            assert np.array_equal(sending.was, sending.memory), "a slot was overwritten while its answer was under way"

    def _work(self, worker: Worker) -> None:
        if worker.phase == "ask":
            for _ in range(self.scenario.policy.depth):
                self._send(worker.rank, 0, Ready(worker.rank, self._asked(worker.rank)))
        else:
            ticket = worker.ticket
            assert ticket is not None
            finite = self.random.random() >= self.scenario.bad
            stop, over = self._asked(worker.rank), worker.over
            push = Push(worker.rank, ticket.number, worker.version, float(ticket.size), finite, over, stop)
            push.lane = worker.lane
            worker.lane = (worker.lane + 1) % self.scenario.policy.depth
            vector = gradient(worker.parameters, worker.rank - len(self.servers), ticket.number)
            for server in self.servers:
                push.tail = (
                    np.array([0.5 * ticket.size, ticket.size, ticket.size, worker.rank, ticket.number])
                    if not server and not over
                    else np.empty(0)
                )
                part = vector[self.shards[server]] if push.carries_gradient else None
                if part is not None and self.scenario.near(server, worker.rank):
                    self.gradients[server][worker.rank][push.lane][:] = part
                    part = None
                self._send(worker.rank, server, push, part)
            self.pushes.setdefault((worker.rank, ticket.number), []).append(push)
        worker.phase = "wait"
        self._read(worker)

    def _read(self, worker: Worker) -> None:
        """Take what has come from each server, as far as it is about the next ticket or says that a step is over."""
        for item in worker.early[:]:
            server, answer, data, sending = item
            if not isinstance(answer, Over):
                assert worker.phase == "wait" or self.scenario.policy.pipeline, "nobody is told unasked"
                if worker.phase != "wait" or server in worker.answers:
                    continue
            worker.early = [other for other in worker.early if other is not item]
            if sending is not None:
                sending.received = True
            self._answered(worker, server, answer, data)

    def _answered(self, worker: Worker, server: int, answer: Answer | Over, data: np.ndarray | None) -> None:
        if isinstance(answer, Over):
            assert (server, data) == (0, None)
            assert worker.phase in ("compute", "wait")
            assert not worker.over, "it is told once"
            worker.over = True
            return
        assert worker.phase == "wait", f"worker {worker.rank} was answered while it is in phase {worker.phase}"
        assert server not in worker.answers, f"server {server} answered twice"
        assert answer.carries_parameters == (data is not None)
        if data is not None:
            worker.parameters[self.shards[server]] = data
        worker.answers[server] = answer
        worker.over &= server != 0
        if len(worker.answers) < len(self.servers):
            return
        answers, worker.answers = worker.answers, {}
        assert len({(a.number, a.action, a.version, a.culprit) for a in answers.values()}) == 1
        near = {s for s in self.servers if self.scenario.near(s, worker.rank)}
        verdict = answers[0]
        assert verdict.totals is not None
        worker.version, worker.totals, worker.ticket = verdict.version, verdict.totals, verdict.ticket
        worker.state = verdict.state
        for s, told in answers.items():
            assert (told.slot >= 0) == (s in near and verdict.action is not Action.FAIL)
        slots = {answers[s].slot for s in near}
        assert len(slots) <= 1, "servers of a node choose the same slot"
        if near and verdict.action is not Action.FAIL:
            vector = self._slots_of(min(near))[slots.pop()]
            if near == self.servers.keys():
                worker.parameters = vector
            else:
                for s in near:
                    worker.parameters[self.shards[s]] = vector[self.shards[s]]
            worker.pulled = worker.parameters.copy()
        if verdict.action is Action.RUN:
            assert verdict.ticket is not None
            self.handed.append((worker.rank, verdict.ticket))
            worker.phase = "compute"
        elif verdict.action is Action.FAIL:
            worker.phase, worker.culprit = "done", verdict.culprit
            self.ended.add(worker.rank)
        else:
            worker.phase = "meet"
            self.meeting.add(worker.rank)

    def _meet(self) -> None:
        """Everybody holds the same version, and nothing is under way."""
        held = np.concatenate([server.parameters for server in self.servers.values()])
        version = self.servers[0].version
        assert {s.version for s in self.servers.values()} | {w.version for w in self.workers.values()} == {version}
        for worker in self.workers.values():
            assert np.array_equal(worker.parameters, held)
        assert not any(self.links.values()), "a message is under way during a cut"
        assert len({s.reached for s in self.servers.values()}) == 1
        self.met.append(version)
        self.ends_with = self.servers[0].reached
        last = self.ends_with is not Action.CUT
        for worker in self.workers.values():
            worker.phase = "done" if last else "ask"
        if last:
            self.ended = {*self.servers, *self.workers}
        self.meeting = set()
