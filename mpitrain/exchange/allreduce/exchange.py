"""The all-reduce exchange: gradients are summed over all ranks, and every rank has the updated parameters."""

from __future__ import annotations

import numpy as np

from mpitrain.cluster.waiting import complete, idle, waiting
from mpitrain.cluster.world import MAX_COUNT, World
from mpitrain.errors import DivergedError
from mpitrain.exchange.allreduce.updates import EveryoneUpdates, OwnersUpdate
from mpitrain.exchange.allreduce.wire import WireOverflowError
from mpitrain.exchange.base import Cut, OnCut, Plan, Portion, Spent, Stopwatch, Traffic, bad_gradient
from mpitrain.exchange.combine import coefficients
from mpitrain.exchange.tickets import Place, Ticket, Tickets
from mpitrain.parameters.layout import Layout, aligned_zeros
from mpitrain.parameters.step import StepResult

_HEAD = 4  # weight, finite, asked to stop, asked to meet
_NOTHING = np.empty(0)


class AllReduceExchange:
    """One rank's side of all-reduce training.

    Between handing the gradient in and summing, a small all-gather tells every rank's weight, sums and float state. It
    is also where ranks wait for each other, asleep where ranks outnumber cores, so that the sum that follows lasts as
    long as its data.

    Args:
        world: all ranks, all of them workers.
        layout: of the parameter vector.
        parameters: the initial vector; rank 0's is used.
        update: how the sum is made, and the optimizer applied to it.
        plan: the run; its tickets are global batches.
        on_cut: called by every rank at each cut.
    """

    def __init__(
        self,
        world: World,
        layout: Layout,
        parameters: np.ndarray,
        update: EveryoneUpdates | OwnersUpdate,
        plan: Plan,
        on_cut: OnCut,
    ) -> None:
        self._world, self._plan, self._on_cut = world, plan, on_cut
        self._update = update
        self._tickets = Tickets(plan.book)
        self._cuts = iter(plan.cuts)
        self._next_cut = next(self._cuts)
        self._tail = np.zeros(_HEAD + plan.sums + plan.state)
        self._tails = np.zeros((world.size, self._tail.size))
        initial = aligned_zeros(layout.size, layout.dtype)
        initial[:] = parameters
        world.meet("sending the initial parameters")
        for low in range(0, layout.size, MAX_COUNT):
            world.comm.Bcast(initial[low : low + MAX_COUNT], 0)
        self.parameters = update.begin(initial)
        self.state: np.ndarray | None = None
        self.totals = plan.begin()
        self.spent, self.traffic = Spent(), Traffic()
        self.dropped = 0
        self._watch = Stopwatch()

    def start(self) -> Ticket | None:
        """This rank's part of the first global batch; None where a resumed run had come to its end."""
        self._watch = Stopwatch()
        if self.totals.version >= self._plan.cuts[-1]:
            self._on_cut(self.totals.version, Cut.LAST)
            return None
        return self._next_ticket()

    def ready(self, part: slice) -> None:
        """The whole vector is reduced at once, after the step."""

    def finish(self, result: StepResult) -> Ticket | None:
        """Sum over all ranks, apply the update, return this rank's part of the next global batch."""
        spent, plan, version = self.spent, self._plan, self.totals.version
        spent.compute += self._watch.lap()
        self.dropped += not result.finite
        self._update.backend.put(result.gradient if result.finite and result.weight else _NOTHING)
        spent.exchange += self._watch.lap()
        self._gather_tails(result)
        spent.waiting += self._watch.lap()
        heads = self._tails[:, :_HEAD].tolist()  # numbers of Python's own: there are few
        self._count_bad([bool(head[1]) for head in heads])
        weights = [head[0] if head[1] else 0.0 for head in heads]
        if any(weights):
            factors, scale = coefficients(weights, plan.undivided)
            rate = plan.learning_rate(version)
            used = [weight > 0 for weight in weights]
            try:
                with waiting("all-reduce", version, self._world.others):
                    self.parameters = self._update.step(used, factors, rate, scale, spent, self._watch)
                self._account(weights, rate)
            except WireOverflowError:
                self._drop_all(used)
            self.traffic.data += self._update.backend.sent
        reached = self.totals.version == self._next_cut and self.totals.version != version
        stopped, asked = any(head[2] for head in heads), any(head[3] for head in heads)
        if (reached or stopped or asked) and self._cut(reached, stopped):
            return None
        return self._next_ticket()

    def portion(self) -> Portion:
        """See ``Exchange.portion``."""
        return self._update.portion()

    def place(self) -> Place:
        """See ``Exchange.place``."""
        return self._tickets.place()

    def close(self) -> None:
        """Give back what the back end holds."""
        self._update.backend.close()

    def _next_ticket(self) -> Ticket | None:
        ticket = self._tickets.take()
        if ticket is None:
            # Tickets end short of the last cut only where samples are counted and an update was dropped.
            if self.totals.version != self._plan.cuts[-1]:
                self._on_cut(self.totals.version, Cut.LAST)
            return None
        return ticket.part(self._world.rank, self._world.size)

    def _gather_tails(self, result: StepResult) -> None:
        world, tail = self._world, self._tail
        tail[:_HEAD] = result.weight, result.finite, self._plan.stopping(), self._plan.due()
        tail[_HEAD : _HEAD + self._plan.sums] = result.sums
        tail[_HEAD + self._plan.sums :] = result.state
        if world.size == 1:
            self._tails[0] = tail
            return
        with waiting("all-reduce", self.totals.version, world.others):
            request = world.comm.Iallgather(tail, self._tails)
            if world.crowded:
                idle([request], sleeping=True)
            else:
                complete(request, sleeping=False)
        self.traffic.headers += tail.nbytes * (world.size - 1)

    def _count_bad(self, finite: list[bool]) -> None:
        if all(finite):
            return
        self.totals.bad += finite.count(False)
        if self.totals.bad > self._plan.max_bad_gradients:
            first = finite.index(False)
            raise DivergedError(bad_gradient(self._world.name(first), self.totals.version))

    def _drop_all(self, used: list[bool]) -> None:
        """Count gradients whose sum did not fit the wire's type; all ranks come here together."""
        self.dropped += used[self._world.rank]
        self.totals.bad += sum(used)
        if self.totals.bad > self._plan.max_bad_gradients:
            raise DivergedError(
                f"the sum of the gradients at step {self.totals.version} is too large for the type of --wire-dtype: "
                "use bfloat16 or float32, lower --learning-rate, or allow some with --max-bad-gradients"
            )

    def _account(self, weights: list[float], rate: float) -> None:
        plan, totals = self._plan, self.totals
        used = [r for r, w in enumerate(weights) if w]
        for r in used:
            totals.add(self._tails[r, _HEAD : _HEAD + plan.sums], 0)
        totals.version += 1
        totals.learning_rate = rate
        if plan.state:
            self.state = average_state(self._tails[:, _HEAD + plan.sums :], weights)

    def _cut(self, reached: bool, stopped: bool) -> bool:
        why = Cut.LAST if reached and self._next_cut == self._plan.cuts[-1] else Cut(Cut.STOPPED * stopped)
        stop = self._on_cut(self.totals.version, why)
        if reached:
            self._next_cut = next(self._cuts, self._next_cut)
        self._watch.lap()
        return stop or why is not Cut.ON_THE_WAY


def average_state(states: np.ndarray, weights: list[float]) -> np.ndarray:
    """The float states of several workers, shape ``(workers, state)``, averaged by weight in rank order."""
    total = np.zeros(states.shape[1])
    for state, weight in zip(states, weights, strict=True):
        if weight:
            total += state * weight
    return total / sum(weights)
