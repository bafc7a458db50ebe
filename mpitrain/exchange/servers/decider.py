"""Server 0's judgement: which pushes are applied, who gets which ticket, when all meet. No clock and no MPI."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from mpitrain.exchange.allreduce.exchange import average_state
from mpitrain.exchange.base import Plan, Totals
from mpitrain.exchange.servers.messages import Action, Entry, Push
from mpitrain.exchange.tickets import Ticket


class Decider(ABC):
    """Turns ready workers and complete pushes into log entries.

    Tickets go out only while applied + in flight < the next cut, so a cut comes when nothing is in flight and
    every worker has asked.

    Args:
        workers: ranks of the workers, ascending.
        plan: the run.
    """

    def __init__(self, workers: Sequence[int], plan: Plan) -> None:
        self.workers = tuple(workers)
        self.plan = plan
        self.totals = Totals.empty(plan.sums)
        self.state = np.empty(0)
        self._culprit = (-1, -1)
        self._tickets = iter(plan.book)
        self._upcoming = next(self._tickets, None)
        self._cuts = list(plan.cuts)
        self._idle: list[int] = []
        self._in_flight: dict[int, Ticket] = {}
        self._number = 0
        self._failed = False
        self._stopping = False

    def stop(self) -> None:
        """Give no more tickets: the run ends when what is in flight has settled."""
        self._stopping = True

    def ready(self, worker: int) -> list[Entry]:
        """A worker has asked for a ticket."""
        self._idle.append(worker)
        if self._failed:
            return [self._fail([])]
        action, answered = self._next()
        return [self._entry(action, answered=answered)] if answered else []

    @abstractmethod
    def complete(self, push: Push) -> list[Entry]:
        """A push is held by every server."""

    @abstractmethod
    def _hand_out(self) -> list[tuple[int, Ticket | None]]:
        """Give tickets to idle workers as far as tickets may go out now."""

    def _take(self) -> Ticket | None:
        ticket = self._upcoming
        self._upcoming = next(self._tickets, None)
        return ticket

    def _settle(self, pushes: Sequence[Push]) -> list[Entry]:
        """One log entry that applies the good ones of ``pushes`` as one update, and says what comes next."""
        totals, plan = self.totals, self.plan
        good = [p for p in pushes if p.carries_gradient]
        bad = [p for p in pushes if not p.finite]
        for push in pushes:
            del self._in_flight[push.worker]
            self._idle.append(push.worker)
        totals.bad += len(bad)
        if bad and totals.bad > plan.max_bad_gradients and not self._failed:
            self._failed, self._culprit = True, (bad[0].worker, totals.version)
        if self._failed:
            return [self._fail(_pairs(pushes))]
        rate = plan.learning_rate(totals.version)
        for push in good:
            totals.add(push.tail[: plan.sums], totals.version - push.version)
        if good:
            totals.version += 1
            totals.learning_rate = rate
            self._agree_on_state(good)
        action, answered = self._next()
        dropped = [pair for pair in _pairs(pushes) if pair not in _pairs(good)]
        return [self._entry(action, rate, _pairs(good), dropped, answered)]

    def _fail(self, dropped: list[tuple[int, int]]) -> Entry:
        """Tell the workers that wait; the others hear when they come, so that nothing they send is left unreceived."""
        answered: list[tuple[int, Ticket | None]] = [(w, None) for w in self._idle]
        self._idle.clear()
        return self._entry(Action.FAIL, dropped=dropped, answered=answered)

    def _next(self) -> tuple[Action, list[tuple[int, Ticket | None]]]:
        answered = [] if self._stopping else self._hand_out()
        # A worker that has not asked yet may be slow to start: to meet without it would leave its question behind.
        if answered or len(self._idle) < len(self.workers):
            return Action.RUN, answered
        ended = self._upcoming is None or self.totals.version == self._cuts[-1]
        while len(self._cuts) > 1 and self._cuts[0] <= self.totals.version:
            self._cuts.pop(0)
        self._idle.clear()
        action = Action.END if ended else Action.STOP if self._stopping else Action.CUT
        return action, [(w, None) for w in self.workers]

    def _agree_on_state(self, pushes: Sequence[Push]) -> None:  # noqa: B027
        """Nothing by default: asynchronous workers keep their own state until the next cut."""

    def _entry(
        self,
        action: Action = Action.RUN,
        rate: float = 0.0,
        applied: Sequence[tuple[int, int]] = (),
        dropped: Sequence[tuple[int, int]] = (),
        answered: Sequence[tuple[int, Ticket | None]] = (),
    ) -> Entry:
        self._number += 1
        return Entry(self._number, action, rate, list(applied), list(dropped), list(answered), self._culprit)


class Asynchronous(Decider):
    """Each push is applied as it comes, and its worker goes on at once (Dean et al., NIPS 2012)."""

    def complete(self, push: Push) -> list[Entry]:
        """Apply this push alone."""
        return self._settle([push])

    def _hand_out(self) -> list[tuple[int, Ticket | None]]:
        answered: list[tuple[int, Ticket | None]] = []
        while self._idle and self._upcoming and self.totals.version + len(self._in_flight) < self._cuts[0]:
            worker, ticket = self._idle.pop(0), self._take()
            assert ticket is not None
            self._in_flight[worker] = ticket
            answered.append((worker, ticket))
        return answered


class Synchronous(Decider):
    """One update for each global batch, from every worker's part of it, summed in rank order."""

    def __init__(self, workers: Sequence[int], plan: Plan) -> None:
        super().__init__(workers, plan)
        self._pushes: dict[int, Push] = {}

    def complete(self, push: Push) -> list[Entry]:
        """Apply the step once every worker's push is there."""
        self._pushes[push.worker] = push
        if len(self._pushes) < len(self.workers):
            return []
        pushes = [self._pushes[w] for w in self.workers]
        self._pushes.clear()
        return self._settle(pushes)

    def _hand_out(self) -> list[tuple[int, Ticket | None]]:
        everyone = len(self._idle) == len(self.workers)
        if not everyone or not self._upcoming or self.totals.version >= self._cuts[0]:
            return []
        ticket = self._take()
        assert ticket is not None
        self._idle.clear()
        parts = [(w, ticket.part(i, len(self.workers))) for i, w in enumerate(self.workers)]
        self._in_flight.update(parts)
        return list(parts)

    def _agree_on_state(self, pushes: Sequence[Push]) -> None:
        if self.plan.state:
            states = np.array([p.tail[self.plan.sums :] for p in pushes])
            self.state = average_state(states, [p.weight for p in pushes])


def _pairs(pushes: Sequence[Push]) -> list[tuple[int, int]]:
    return [(p.worker, p.ticket) for p in pushes]
