"""A server as a stepped object: ``on(message)`` gives the messages to send. No MPI, no clock but the one given."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mpitrain.exchange.policy import Policy
from mpitrain.exchange.servers.decider import Decider
from mpitrain.exchange.servers.gathering import Gathering
from mpitrain.exchange.servers.messages import Action, Answer, Entry, Held, Message, Over, Push, Ready
from mpitrain.exchange.servers.slots import NO_TICKET, Slots
from mpitrain.exchange.tickets import Ticket
from mpitrain.parameters.optimizers import SliceOptimizer


@dataclass
class Outgoing:
    """A message for ``rank``; with ``slot``, that parameter slot travels beside it and must stay as it is meanwhile."""

    rank: int
    message: Message
    slot: int | None = None


class Server:
    """One shard of the parameters and its optimizer, executing the log.

    Args:
        rank: this server's.
        servers: ranks of all servers; the first decides.
        gradients: by worker, and by ``Push.lane``, where its gradient for this shard is when its push arrives.
        slots: where the versions of the parameters go; the first holds the initial shard.
        optimizer: of the shard.
        policy: how gradients become updates.
        undivided: whether gradients are added and not averaged.
        decider: on server 0, else None.
        clock: seconds, for measuring updates.
        version: updates that had been applied before a resumed run goes on.
    """

    def __init__(
        self,
        rank: int,
        servers: tuple[int, ...],
        gradients: Mapping[int, Sequence[np.ndarray]],
        slots: Slots,
        optimizer: SliceOptimizer,
        policy: Policy,
        undivided: bool = False,
        decider: Decider | None = None,
        clock: Callable[[], float] = time.perf_counter,
        version: int = 0,
    ) -> None:
        self._rank, self._servers, self._gradients = rank, servers, gradients
        self._optimizer, self._decider, self._clock = optimizer, decider, clock
        self._slots = slots
        self._compensates = policy.compensation is not None
        self._gathering = Gathering(slots[0].size, slots[0].dtype, policy, undivided)
        self._current = 0
        self._pushes: dict[tuple[int, int], Push] = {}
        self._holders: dict[tuple[int, int], int] = {}
        self._sent: dict[int, int] = {}
        self._failed: set[int] = set()
        self.version = version
        self.reached: Action = Action.RUN
        """CUT, END or STOP when the last message has made everybody meet; FAIL when all workers know of a failure."""
        self.culprit = (-1, -1)
        self.applied = 0
        self.update_seconds = 0.0

    @property
    def parameters(self) -> np.ndarray:
        """The shard at ``version``; read only."""
        return self._slots[self._current]

    @property
    def optimizer(self) -> SliceOptimizer:
        """Of the shard."""
        return self._optimizer

    @property
    def kept(self) -> dict[str, np.ndarray]:
        """What the policy keeps from update to update beside the optimizer, by name."""
        return self._gathering.kept

    def slot(self, index: int) -> np.ndarray:
        """The memory of a parameter slot."""
        return self._slots[index]

    def released(self, slot: int) -> None:
        """An answer that held ``slot`` has been sent."""
        self._slots.sent(slot)

    def on(self, message: Message) -> list[Outgoing]:
        """Take one message in; return what must be sent, in order."""
        self.reached = Action.RUN
        if self._decider and isinstance(message, Ready | Push | Held) and message.stop:
            self._decider.stop()
        match message:
            case Ready(worker):
                return self._log(self._judge().ready(worker))
            case Push():
                self._pushes[message.worker, message.ticket] = message
                held = Held(self._rank, message.worker, message.ticket, message.stop)
                return self.on(held) if self._decider else [Outgoing(self._servers[0], held)]
            case Held(worker=worker, ticket=ticket):
                return self._count(worker, ticket)
            case Entry():
                return self._execute(message)
            case Over() | Answer():
                raise TypeError("an answer is for workers")

    def _judge(self) -> Decider:
        assert self._decider is not None, "only server 0 decides"
        return self._decider

    def _count(self, worker: int, ticket: int) -> list[Outgoing]:
        key = (worker, ticket)
        self._holders[key] = self._holders.get(key, 0) + 1
        if self._holders[key] < len(self._servers):
            return []
        del self._holders[key]
        return self._log(self._judge().complete(self._pushes[key]))

    def _log(self, entries: list[Entry]) -> list[Outgoing]:
        sent = []
        for entry in entries:
            # The others first, so that all shards update at the same time.
            sent += [Outgoing(server, entry) for server in self._servers[1:]]
            sent += self._execute(entry)
        return sent + [Outgoing(worker, Over()) for worker in self._judge().overtaken()]

    def _execute(self, entry: Entry) -> list[Outgoing]:
        seconds = self._apply(entry) if entry.applied or entry.step else 0.0
        # Not before: what a gradient was computed from may be needed to correct it.
        self._slots.settled(entry.applied + entry.dropped)
        for key in entry.dropped:
            del self._pushes[key]
        self._reach(entry)
        return [self._answer(entry, worker, ticket, seconds) for worker, ticket in entry.answered]

    def _apply(self, entry: Entry) -> float:
        start = self._clock()
        pushes = [self._pushes.pop(key) for key in entry.applied]
        gradients = [self._gradient(push) for push in pushes]
        ages = [self.version - push.version for push in pushes]
        update = self._gathering.take(gradients, [p.weight for p in pushes], ages, entry.step)
        if update is not None:
            free = self._slots.free(self._current)
            total, scale = update
            self._optimizer.apply(self._slots[self._current], total, self._slots[free], entry.rate, scale)
            self._current = free
            self.version += 1
        self.applied += len(pushes)
        seconds = self._clock() - start
        self.update_seconds += seconds
        return seconds

    def _gradient(self, push: Push) -> np.ndarray:
        gradient = self._gradients[push.worker][push.lane]
        if not self._compensates:
            return gradient
        pulled = self._slots.pulled(push.worker, push.ticket)
        return self._gathering.compensate(gradient, self._slots[self._current], pulled)

    def _reach(self, entry: Entry) -> None:
        self.culprit = entry.culprit
        if entry.action is Action.FAIL:
            self._failed |= {worker for worker, _ in entry.answered}
            self.reached = Action.FAIL if len(self._failed) == len(self._gradients) else Action.RUN
        else:
            self.reached = entry.action

    def _answer(self, entry: Entry, worker: int, ticket: Ticket | None, seconds: float) -> Outgoing:
        shared, failed = self._slots.reads(worker), entry.action is Action.FAIL
        carries = self._sent.get(worker) != self.version and not shared and not failed
        slot = self._current if shared and not failed else -1
        answer = Answer(entry.number, entry.action, self.version, carries, slot, seconds, culprit=entry.culprit)
        if self._decider:
            answer.ticket = ticket
            answer.totals, answer.state = self._decider.totals, self._decider.state
        if not failed:
            self._slots.hold(worker, NO_TICKET if ticket is None else ticket.number, self._current, carries)
        if not carries:
            return Outgoing(worker, answer)
        self._sent[worker] = self.version
        return Outgoing(worker, answer, self._current)
