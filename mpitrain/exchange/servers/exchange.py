"""The two ends of server training: a worker's exchange, and the loop around a server."""

from __future__ import annotations

from collections import deque
from functools import partial

import numpy as np

from mpitrain.cluster.roles import Roles
from mpitrain.cluster.waiting import Stage, now
from mpitrain.cluster.world import World
from mpitrain.errors import DivergedError, MpitrainError
from mpitrain.exchange.base import Cut, OnCut, Plan, Portion, Spent, Stopwatch, Totals, Traffic, bad_gradient
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.servers.decider import Decider
from mpitrain.exchange.servers.endpoint import Endpoint
from mpitrain.exchange.servers.messages import Action, Answer, Codec, Held, Message, Over, Push, Ready
from mpitrain.exchange.servers.rows import RowBuffer, chosen, values_of, width_of, without
from mpitrain.exchange.servers.server import Outgoing, Server
from mpitrain.exchange.servers.slots import SharedSlots, Slots, TravellingSlots
from mpitrain.exchange.servers.tally import Tally
from mpitrain.exchange.servers.transport import SharedVectors
from mpitrain.exchange.tickets import Place, Ticket
from mpitrain.parameters.layout import Layout, aligned_zeros
from mpitrain.parameters.optimizers import SliceOptimizer
from mpitrain.parameters.step import StepResult

_CUTS = {Action.CUT: Cut.ON_THE_WAY, Action.END: Cut.LAST, Action.STOP: Cut.STOPPED}


class WorkerExchange:
    """A worker's side: push a gradient's slices to their servers, pull new parameters from them.

    With a pipeline (``depth`` 2) it has asked for two tickets: it pushes the gradient of one, and takes the answer
    about the other, which came while it computed. Servers answer in the order of the pushes. Sources: Langford, Smola
    and Zinkevich, "Slow Learners are Fast", NIPS 2009; Li et al., "Pipe-SGD", NeurIPS 2018.

    Args:
        world: all ranks of the run.
        roles: who serves and who works.
        shards: the slice of each server, in the order of ``roles.servers``.
        layout: of the parameter vector.
        plan: the run.
        on_cut: called by every rank at each cut.
        memory: through which gradients and parameters go to and from the servers of this node; None where all travel as
            messages.
        depth: tickets to hold at once.
    """

    def __init__(
        self,
        world: World,
        roles: Roles,
        shards: list[slice],
        layout: Layout,
        plan: Plan,
        on_cut: OnCut,
        memory: SharedVectors | None = None,
        depth: int = 1,
    ) -> None:
        self._world, self._plan, self._on_cut = world, plan, on_cut
        self._servers = roles.servers
        self._shards = dict(zip(roles.servers, shards, strict=True))
        codec = Codec(len(roles.workers), plan.sums, plan.state, len(layout.entries), depth)
        self._link = Endpoint(world, roles.servers, codec)
        self._depth, self._lane = depth, 0
        self._early: dict[int, deque[Answer]] = {server: deque() for server in roles.servers}
        """By server, answers about later tickets than another server's next one; what travels beside them does yet."""
        self._ticket: Ticket | None = None
        self._version = -1
        self._over = False
        self._layout, self._memory = layout, memory
        self._near = memory.servers if memory else frozenset[int]()
        self._written: dict[int, list[RowBuffer]] = {}
        """By server of this node: where this rank's gradients for it go, in turn."""
        if memory:
            for server in self._near:
                shard = self._shards[server]
                self._written[server] = [RowBuffer(v[shard], shard, layout) for v in memory.gradients[world.rank]]
        self._direct = self._near == set(roles.servers)
        """Whether all parameters are read where the servers wrote them; else this rank has a vector of its own."""
        self.parameters = memory.slots[0] if memory and self._direct else aligned_zeros(layout.size, layout.dtype)
        copies = depth if depth > 1 and not self._direct else 0
        self._copies = [aligned_zeros(layout.size, layout.dtype) for _ in range(copies)]
        """Of gradients that travel while the next one is computed where they were."""
        self._afar = depth > 1 and not set(roles.servers) <= set(world.node)
        self.state: np.ndarray | None = None
        self.totals = plan.begin(len(roles.workers))
        self.spent = Spent()
        self.dropped = 0
        self.weight = 0.0
        """Of this worker's latest gradient that was to be applied."""
        self._watch = Stopwatch()

    @property
    def traffic(self) -> Traffic:
        """Bytes sent by this worker."""
        return self._link.traffic

    def start(self) -> Ticket | None:
        """The first ticket, with the servers' initial parameters."""
        self._watch = Stopwatch()
        return self._ask()

    def ready(self, part: slice) -> None:
        """Slices are pushed after the step."""

    def finish(self, result: StepResult) -> Ticket | None:
        """Push to all servers, wait for all answers: to this push, or with a pipeline about the next ticket."""
        assert self._ticket is not None
        self.spent.compute += self._watch.lap()
        self.dropped += not result.finite
        stop, over = self._plan.stopping(), self._step_is_over()
        push = Push(self._world.rank, self._ticket.number, self._version, result.weight, result.finite, over, stop)
        push.lane = self._lane
        self._lane = (self._lane + 1) % self._depth
        if push.carries_gradient:
            self.weight = result.weight
        for server in self._servers:
            first = server == self._servers[0] and not over
            push.tail = np.concatenate((result.sums, result.state)) if first else np.empty(0)
            self._link.send(server, push, self._slice(result, server, push) if push.carries_gradient else ())
        if self._afar:
            # Between nodes MPI sends only while it is called: a server would wait for the rest through the next step.
            self._link.flush()
        self.spent.exchange += self._watch.lap()
        return self._await()

    def _slice(self, result: StepResult, server: int, push: Push) -> list[np.ndarray]:
        """What travels of a gradient; nothing where its server reads it in the node's memory."""
        gradient, shard, entries = result.gradient, self._shards[server], self._layout.entries
        rows = chosen(result.rows, shard, self._layout)
        values = {index: values_of(gradient, entries[index], own) for index, own in rows.items()}
        if server not in self._near:
            push.rows = [(index, len(own)) for index, own in rows.items()]
            parts = without(shard, [entries[index] for index in rows])
            few = [array for index in rows for array in (rows[index], values[index])]
            if not self._copies:
                return [gradient[part] for part in parts] + few
            copy = self._copies[push.lane]
            for part in parts:
                copy[part] = gradient[part]
            return [copy[part] for part in parts] + [array.copy() for array in few]
        mine = self._written[server][push.lane]
        for part in mine.dense(rows):
            mine.part(part)[:] = gradient[part]
            self.traffic.data += gradient[part].nbytes
        for index, own in rows.items():
            mine.put(index, own, values[index])
            self.traffic.data += own.nbytes + values[index].nbytes
        push.rows = []
        return []

    def portion(self) -> None:
        """Servers hold what a checkpoint keeps."""

    def place(self) -> None:
        """Server 0 hands the data out."""

    def close(self) -> None:
        """Give the links back."""
        self._link.close()

    def _step_is_over(self) -> bool:
        """Whether server 0 has said so: nothing else comes while a worker computes, unless it is in a pipeline."""
        return self._depth == 1 and (self._over or self._link.look() is not None)

    def _ask(self) -> Ticket | None:
        for _ in range(self._depth):
            self._link.send(self._servers[0], Ready(self._world.rank, self._plan.stopping()))
        return self._await()

    def _await(self) -> Ticket | None:
        verdict, waited, update_seconds = self._collect()
        self._ticket = verdict.ticket
        # The slowest server's update is not idle waiting: without servers this rank would have had to compute it.
        update = min(update_seconds, waited)
        self.spent.update += update
        self.spent.waiting += waited - update
        if verdict.action is Action.RUN:
            return self._ticket
        if verdict.action is Action.FAIL:
            worker, step = verdict.culprit
            raise DivergedError(bad_gradient(self._world.name(worker), step))
        why = _CUTS[verdict.action]
        stop = self._on_cut(self._version, why)
        self._watch.lap()
        return self._ask() if why is Cut.ON_THE_WAY and not stop else None

    def _collect(self) -> tuple[Answer, float, float]:
        """Server 0's next answer, once all have answered and agree; seconds waited; the longest update among them."""
        answers: dict[int, Answer] = {}
        waited, self._over = 0.0, False
        early: list[tuple[int, Message]] = [(s, kept.popleft()) for s, kept in self._early.items() if kept]
        while len(answers) < len(self._servers):
            server, answer = early.pop() if early else self._link.receive("waiting for servers", self._version)
            if isinstance(answer, Over):
                # After server 0's answer it is about the next ticket, though other servers are still to answer.
                self._over = self._servers[0] in answers
                continue
            assert isinstance(answer, Answer)
            if server in answers:
                self._early[server].append(answer)
                continue
            answers[server] = answer
            waited += self._watch.lap()
            if answer.carries_parameters:
                self._link.receive_slice(server, self.parameters[self._shards[server]])
                self.spent.exchange += self._watch.lap()
        slots = {a.slot for s, a in answers.items() if s in self._near}
        if len({(a.number, a.action, a.version) for a in answers.values()}) != 1 or len(slots) > 1:
            told = ", ".join(f"server {s}: entry {a.number}, version {a.version}" for s, a in answers.items())
            raise MpitrainError(f"the servers' logs differ at {self._world.name(self._world.rank)} ({told})")
        verdict = answers[self._servers[0]]
        assert verdict.totals is not None
        if slots and max(slots) >= 0:
            self._read(slots.pop(), verdict.version)
        self._version, self.totals = verdict.version, verdict.totals
        self.state = verdict.state if verdict.state.size else None
        return verdict, waited, max(a.update_seconds for a in answers.values())

    def _read(self, slot: int, version: int) -> None:
        """Take the parameters of this node's servers from a slot."""
        assert self._memory is not None
        if self._direct:
            self.parameters = self._memory.slots[slot]
        elif version != self._version:
            for server in self._near:
                shard = self._shards[server]
                self.parameters[shard] = self._memory.slots[slot][shard]
            self.spent.exchange += self._watch.lap()


class ServerLoop:
    """The loop around one :class:`Server`: receives, lets it step, sends what it says.

    Args:
        world: all ranks of the run.
        roles: who serves and who works.
        shards: the slice of each server, in the order of ``roles.servers``.
        layout: of the parameter vector.
        parameters: the initial vector, shape ``(layout.size,)``; only this server's shard is read.
        optimizer: of the shard.
        policy: how gradients become updates.
        plan: the run.
        decider: on server 0, else None.
        on_cut: called by every rank at each cut.
        memory: through which gradients and parameters go to and from the workers of this node; None where all travel as
            messages.
    """

    def __init__(
        self,
        world: World,
        roles: Roles,
        shards: list[slice],
        layout: Layout,
        parameters: np.ndarray,
        optimizer: SliceOptimizer,
        policy: Policy,
        plan: Plan,
        decider: Decider | None,
        on_cut: OnCut,
        memory: SharedVectors | None = None,
    ) -> None:
        me = roles.servers.index(world.rank)
        mine, initial = shards[me], parameters[shards[me]]
        self._layout = layout
        self._world, self._on_cut, self._plan, self._decider = world, on_cut, plan, decider
        self._part = mine
        near = memory.gradients if memory else {}
        self._far = frozenset(roles.workers) - near.keys()
        self._received = {
            w: [RowBuffer(aligned_zeros(initial.size, initial.dtype), mine, layout) for _ in range(policy.depth)]
            for w in sorted(self._far)
        }
        gradients = {
            w: [b.vector for b in self._received[w]] if w in self._far else [v[mine] for v in near[w]]
            for w in roles.workers
        }
        slots: Slots
        if memory and near:
            slots = SharedSlots(memory.slots, mine, near, lambda: self._link.progress())
        else:
            keep = policy.compensation is not None
            slots = TravellingSlots(policy.depth * len(roles.workers) + 2, initial.size, initial.dtype, keep)
        slots[0][:] = initial
        rules = policy, plan.undivided, decider
        version = 0 if plan.totals is None else plan.totals.version
        self.server = Server(world.rank, roles.servers, gradients, slots, optimizer, *rules, version=version)
        others = roles.servers[1:] if me == 0 else roles.servers[:1]
        codec = Codec(len(roles.workers), plan.sums, plan.state, len(layout.entries), policy.depth)
        self._link = Endpoint(world, (*others, *roles.workers), codec)

    @property
    def totals(self) -> Totals | None:
        """Of all that was applied, on server 0."""
        return self._decider.totals if self._decider else None

    @property
    def tally(self) -> Tally | None:
        """What was counted of each worker, on server 0."""
        return self._decider.tally if self._decider else None

    @property
    def traffic(self) -> Traffic:
        """Bytes sent by this server."""
        return self._link.traffic

    def serve(self) -> None:
        """Serve until the run ends.

        Raises:
            DivergedError: where more gradients than allowed held NaN or infinity.
        """
        server, link = self.server, self._link
        while True:
            rank, message = link.receive("waiting for pushes", server.version)
            now.work("serving", server.version)
            now.stage = Stage.RUN
            if isinstance(message, Push) and message.carries_gradient and message.worker in self._far:
                self._receive(rank, message)
            if isinstance(message, Ready | Push | Held) and self._plan.stopping():
                message.stop = True
            if self._plan.due() and self._decider:
                self._decider.cut_soon()
            for out in server.on(message):
                self._send(out)
            if server.reached is Action.FAIL:
                link.flush()
                worker, step = server.culprit
                raise DivergedError(bad_gradient(self._world.name(worker), step))
            if server.reached in _CUTS:
                link.flush()
                why = _CUTS[server.reached]
                if self._on_cut(server.version, why) or why is not Cut.ON_THE_WAY:
                    return

    def _receive(self, rank: int, push: Push) -> None:
        """Take the gradient that travels beside ``push``."""
        buffer = self._received[push.worker][push.lane]
        for part in buffer.dense(index for index, _ in push.rows):
            self._link.receive_slice(rank, buffer.part(part))
        for index, count in push.rows:
            rows = np.empty(count, np.int64)
            values = np.empty((count, width_of(self._layout.entries[index])), self._layout.dtype)
            self._link.receive_slice(rank, rows)
            self._link.receive_slice(rank, values)
            buffer.put(index, rows, values)

    def portion(self) -> Portion:
        """See ``Exchange.portion``: this server's shard."""
        return Portion(self._part, self.server.parameters, self.server.optimizer, kept=self.server.kept)

    def place(self) -> Place | None:
        """See ``Exchange.place``."""
        return self._decider.place() if self._decider else None

    def close(self) -> None:
        """Give the links back."""
        self._link.close()

    def _send(self, out: Outgoing) -> None:
        if out.slot is None:
            self._link.send(out.rank, out.message)
        else:
            release = partial(self.server.released, out.slot)
            self._link.send(out.rank, out.message, [self.server.slot(out.slot)], release)
