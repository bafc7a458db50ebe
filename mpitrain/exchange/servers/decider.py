"""Server 0's judgement: which pushes are applied, who gets which ticket, when all meet. No clock and no MPI."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from mpitrain.exchange.allreduce.exchange import average_state
from mpitrain.exchange.base import Plan
from mpitrain.exchange.servers.messages import Action, Entry, Push
from mpitrain.exchange.servers.tally import Drop, Tally
from mpitrain.exchange.tickets import Place, Ticket, Tickets


class Decider(ABC):
    """Turns ready workers and complete pushes into log entries; the policies are its subclasses.

    Tickets go out only while applied + in flight < the next cut, so a cut comes when nothing is in flight and
    every worker has asked.

    Args:
        workers: ranks of the workers, ascending.
        plan: the run.
        depth: tickets that a worker may hold at once. It asks for each, and gets them in order.
    """

    def __init__(self, workers: Sequence[int], plan: Plan, depth: int = 1) -> None:
        self.workers = tuple(workers)
        self.plan = plan
        self._depth = depth
        self.totals = plan.begin(len(workers))
        self.tally = Tally.of(workers)
        self.state = np.empty(0)
        self._culprit = (-1, -1)
        self._tickets = Tickets(plan.book)
        self._cuts = list(plan.cuts)
        self._idle: list[int] = []
        """A worker is named for each ticket that it has asked for and not got."""
        self._in_flight: dict[tuple[int, int], Ticket] = {}
        """By worker and number."""
        self._pushes: dict[tuple[int, int], Push] = {}
        """By worker and ticket, what waits for the rest of its step."""
        self._number = 0
        self._taken = 0
        """Gradients taken up since the last update."""
        self._rate: float | None = None
        """Of the update that the entry under way makes; None where it makes none."""
        self._failed = False
        self._stopping = False

    def stop(self) -> None:
        """Give no more tickets: the run ends when what is in flight has settled."""
        self._stopping = True

    def cut_soon(self) -> None:
        """Let all meet at the first version at which nothing need be in flight."""
        soon = self.totals.version + max(1, self._updates_under_way())
        if soon < self._cuts[0]:
            self._cuts.insert(0, soon)

    def place(self) -> Place:
        """At a cut, how far the run has come in its data."""
        return self._tickets.place()

    def ready(self, worker: int) -> list[Entry]:
        """A worker has asked for a ticket."""
        self._idle.append(worker)
        if self._failed:
            return [self._fail([])]
        action, answered = self._next()
        return [self._entry(action, answered=answered)] if answered else []

    def complete(self, push: Push) -> list[Entry]:
        """A push is held by every server."""
        if not self._failed:
            return self._judge(push)
        self._count_bad([push])
        return [self._fail([push])]

    def overtaken(self) -> list[int]:
        """Workers, each named once for a ticket, that compute what will be dropped."""
        return []

    @abstractmethod
    def _judge(self, push: Push) -> list[Entry]:
        """What becomes of a complete push."""

    @abstractmethod
    def _hand_out(self) -> list[tuple[int, Ticket]]:
        """Give tickets to idle workers as far as tickets may go out now."""

    def _updates_under_way(self) -> int:
        """Updates that tickets in flight will make, as far as their gradients are good."""
        return 1

    def _take(self) -> Ticket:
        ticket = self._tickets.take()
        assert ticket is not None
        return ticket

    def _settle(self, pushes: Sequence[Push]) -> list[Entry]:
        """One log entry that takes up the good ones of ``pushes``, and says what comes next."""
        totals, plan = self.totals, self.plan
        good = [p for p in pushes if p.carries_gradient]
        bad = self._count_bad(pushes)
        if totals.bad > plan.max_bad_gradients:
            self._failed, self._culprit = True, (bad[0].worker, totals.version)
            return [self._fail(pushes)]
        self._release(pushes)
        for push in good:
            staleness = totals.version - push.version
            totals.add(push.tail[: plan.sums], staleness)
            self.tally.staleness[push.worker][staleness] += 1
        self._taken += len(good)
        if self._enough():
            self._update()
        if good:
            self._agree_on_state(good)
        action, answered = self._next()
        dropped = [pair for pair in _pairs(pushes) if pair not in _pairs(good)]
        return [self._entry(action, _pairs(good), dropped, answered)]

    def _enough(self) -> bool:
        """Whether the gradients taken up make an update."""
        return self._taken > 0

    def _update(self) -> None:
        """Make the next version of the gradients taken up, with the entry under way."""
        self._rate = self.plan.learning_rate(self.totals.version)
        self.totals.version += 1
        self.totals.learning_rate = self._rate
        self._taken = 0

    def _drop(self, pushes: Sequence[Push], why: Drop) -> list[Entry]:
        """One log entry that forgets ``pushes``, and says what comes next."""
        self._count(pushes, why)
        self._release(pushes)
        action, answered = self._next()
        return [self._entry(action, dropped=_pairs(pushes), answered=answered)]

    def _fail(self, pushes: Sequence[Push]) -> Entry:
        """Tell the workers that hold no ticket; the others hear later, so that nothing they send is left unreceived."""
        waiting = list(self._pushes.values())
        self._pushes.clear()
        self._count_bad(waiting)
        pushes = [*pushes, *waiting]
        self._release(pushes)
        told = [w for w in self.workers if self._idle.count(w) == self._depth]
        self._idle = [w for w in self._idle if w not in told]
        answered: list[tuple[int, Ticket | None]] = [(w, None) for w in told]
        return self._entry(Action.FAIL, dropped=_pairs(pushes), answered=answered)

    def _release(self, pushes: Sequence[Push]) -> None:
        for push in pushes:
            del self._in_flight[push.worker, push.ticket]
            self._idle.append(push.worker)

    def _count_bad(self, pushes: Sequence[Push]) -> list[Push]:
        bad = [p for p in pushes if not p.finite]
        self._count(bad, Drop.NOT_FINITE)
        self.totals.bad += len(bad)
        return bad

    def _count(self, pushes: Sequence[Push], why: Drop) -> None:
        for push in pushes:
            self.tally.dropped[push.worker][why.value] += 1
            self.totals.dropped[self.workers.index(push.worker)] += 1

    def _next(self) -> tuple[Action, Sequence[tuple[int, Ticket | None]]]:
        answered = [] if self._stopping else self._hand_out()
        # A worker that has not asked yet may be slow to start: to meet without it would leave its question behind.
        if answered or len(self._idle) < self._depth * len(self.workers):
            return Action.RUN, answered
        if self._taken:
            self._update()  # nobody will bring the rest
        ended = self.totals.version == self._cuts[-1] or self._exhausted()
        while len(self._cuts) > 1 and self._cuts[0] <= self.totals.version:
            self._cuts.pop(0)
        self._idle.clear()
        action = Action.END if ended else Action.STOP if self._stopping else Action.CUT
        return action, [(w, None) for w in self.workers]

    def _exhausted(self) -> bool:
        """Whether no ticket is left, when none is in flight."""
        return self._tickets.upcoming is None

    def _agree_on_state(self, pushes: Sequence[Push]) -> None:
        """All workers go on from the averages of those that made the update."""
        if self.plan.state:
            states = np.array([p.tail[self.plan.sums :] for p in pushes])
            self.state = average_state(states, [p.weight for p in pushes])

    def _entry(
        self,
        action: Action = Action.RUN,
        applied: Sequence[tuple[int, int]] = (),
        dropped: Sequence[tuple[int, int]] = (),
        answered: Sequence[tuple[int, Ticket | None]] = (),
    ) -> Entry:
        self._number += 1
        rate, self._rate = self._rate, None
        pairs = list(applied), list(dropped)
        return Entry(self._number, action, rate or 0.0, rate is not None, *pairs, list(answered), self._culprit)


def _pairs(pushes: Sequence[Push]) -> list[tuple[int, int]]:
    return [(p.worker, p.ticket) for p in pushes]
