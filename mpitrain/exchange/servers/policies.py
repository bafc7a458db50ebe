"""The policies of server 0: who waits for whom, and which gradients count."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mpitrain.exchange.base import Plan
from mpitrain.exchange.servers.decider import Decider
from mpitrain.exchange.servers.messages import Entry, Push
from mpitrain.exchange.servers.tally import Drop
from mpitrain.exchange.tickets import Place, Ticket


class Synchronous(Decider):
    """One update for each global batch, from every worker's part of it, summed in rank order.

    With a pipeline workers hold their parts of two steps; each completes them in order, and so all do.
    """

    def _judge(self, push: Push) -> list[Entry]:
        self._pushes[push.worker, push.ticket] = push
        step = [(w, push.ticket) for w in self.workers]
        if not all(part in self._pushes for part in step):
            return []
        return self._settle([self._pushes.pop(part) for part in step])

    def _hand_out(self) -> list[tuple[int, Ticket]]:
        everyone = set(self._idle) == set(self.workers)
        if not everyone or not self._tickets.upcoming or self._reached() >= self._cuts[0]:
            return []
        ticket = self._take()
        parts = [(w, ticket.part(i, len(self.workers))) for i, w in enumerate(self.workers)]
        for worker, part in parts:
            self._idle.remove(worker)
            self._in_flight[worker, part.number] = part
        return parts

    def _reached(self) -> int:
        """The version when what is in flight has made its updates."""
        return self.totals.version + self._updates_under_way()

    def _updates_under_way(self) -> int:
        return len(self._in_flight) // len(self.workers)


class Backed(Decider):
    """One update from the first ``quorum`` gradients of a step, summed in rank order; later ones are dropped.

    Chen et al., "Revisiting Distributed Synchronous SGD", 2016: of N + b workers the b slowest of each step are not
    waited for. Each worker computes a ticket of its own, and that of a dropped gradient is handed out again.

    Args:
        workers: ranks of the workers, ascending.
        plan: the run.
        quorum: gradients of an update, at most ``len(workers)``.
    """

    def __init__(self, workers: Sequence[int], plan: Plan, quorum: int) -> None:
        super().__init__(workers, plan)
        self._quorum = quorum
        self._returned: deque[Ticket] = deque()
        self._left = plan.book.tickets
        """Tickets whose gradients are neither applied nor given up; None where tickets have no end."""
        self._tardy: set[int] = set()
        """Workers whose latest gradient was dropped: with the same ticket again they would hold up its samples."""
        self._began: dict[int, int] = {}
        """The version at which each worker that computes began, until it has heard that its step is over."""

    def ready(self, worker: int) -> list[Entry]:
        """A worker has asked for a ticket."""
        return super().ready(worker) + self._give_up()

    def place(self) -> Place:
        """At a cut, how far the run has come in its data: samples of late gradients wait to be handed out again."""
        return self._tickets.place(self._returned)

    def overtaken(self) -> list[int]:
        """Workers, each named once for a ticket, that compute what will be dropped."""
        late = [w for w, _ in self._in_flight if self._began.get(w, self.totals.version) < self.totals.version]
        for worker in late:
            del self._began[worker]
        return late

    def _judge(self, push: Push) -> list[Entry]:
        entries: list[Entry] = []
        if push.finite and push.version < self.totals.version:
            self._returned.append(self._in_flight[push.worker, push.ticket])
            self._tardy.add(push.worker)
            entries = self._drop([push], Drop.LATE)
        elif push.finite:
            self._pushes[push.worker, push.ticket] = push
            self._tardy.discard(push.worker)
        else:
            entries = self._done([push])
        # The last step of all makes do with the tickets that are left: a bad gradient leaves one fewer to wait for.
        if self._pushes and len(self._pushes) >= min(self._quorum, self._left or self._quorum):
            pushes = [self._pushes.pop(w) for w in sorted(self._pushes)]
            entries += self._done(pushes)
        return entries + self._give_up()

    def _hand_out(self) -> list[tuple[int, Ticket]]:
        answered: list[tuple[int, Ticket]] = []
        while self._idle and not self._exhausted() and self.totals.version < self._cuts[0]:
            worker = self._idle.pop(0)
            fresh = not self._returned or (worker in self._tardy and self._tickets.upcoming)
            ticket = self._take() if fresh else self._returned.popleft()
            self._in_flight[worker, ticket.number] = ticket
            self._began[worker] = self.totals.version
            answered.append((worker, ticket))
        return answered

    def _exhausted(self) -> bool:
        return not self._returned and super()._exhausted()

    def _done(self, pushes: Sequence[Push]) -> list[Entry]:
        if self._left is not None:
            self._left -= len(pushes)
        return self._settle(pushes)

    def _give_up(self) -> list[Entry]:
        """Drop what waits for a step that nobody will complete, because no more tickets are given."""
        if not self._stopping or not self._pushes or len(self._idle) + len(self._pushes) < len(self.workers):
            return []
        pushes = [self._pushes.pop(w) for w in sorted(self._pushes)]
        self._returned.extend(self._in_flight[p.worker, p.ticket] for p in pushes)
        return self._drop(pushes, Drop.UNFINISHED)


class Asynchronous(Decider):
    """Each push is applied as it comes, and its worker goes on at once (Dean et al., NIPS 2012).

    With a bound S the policy is stale synchronous parallel (Ho et al., NIPS 2013): a worker's clock counts its settled
    tickets, and it gets the next one only while its clock is at most S ahead of the slowest worker's.

    With a quorum C it is softsync (Zhang et al., IJCAI 2016): each C pushes, whoever sent them, make one update; a push
    is taken up as it comes, and its worker goes on at once. The last update of a run takes what there is.

    Args:
        workers: ranks of the workers, ascending.
        plan: the run.
        bound: S; None for no bound.
        quorum: C.
        depth: tickets that a worker may hold at once.
    """

    def __init__(
        self, workers: Sequence[int], plan: Plan, bound: int | None = None, quorum: int = 1, depth: int = 1
    ) -> None:
        super().__init__(workers, plan, depth)
        self._bound, self._quorum = bound, quorum
        self._clocks = dict.fromkeys(self.workers, 0)

    def _judge(self, push: Push) -> list[Entry]:
        self._clocks[push.worker] += 1
        return self._settle([push])

    def _enough(self) -> bool:
        return self._taken >= self._quorum

    def _hand_out(self) -> list[tuple[int, Ticket]]:
        answered: list[tuple[int, Ticket]] = []
        slowest = min(self._clocks.values())
        for worker in self._idle[:]:
            missing = (self._cuts[0] - self.totals.version) * self._quorum - self._taken
            if not self._tickets.upcoming or len(self._in_flight) >= missing:
                break
            lead = self._clocks[worker] - slowest
            if self._bound is not None and lead > self._bound:
                continue
            self.tally.clock_gap = max(self.tally.clock_gap, lead)
            self._idle.remove(worker)
            ticket = self._take()
            self._in_flight[worker, ticket.number] = ticket
            answered.append((worker, ticket))
        return answered

    def _updates_under_way(self) -> int:
        return -(-(len(self._in_flight) + self._taken) // self._quorum)

    def _agree_on_state(self, pushes: Sequence[Push]) -> None:
        """Workers keep their own state until the next cut."""
