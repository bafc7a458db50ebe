"""What one rank of a run has for a checkpoint, and what it takes from one at the start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mpitrain.checkpoints.manifest import Local, Manifest
from mpitrain.cluster.roles import Roles
from mpitrain.exchange.base import Cut, Exchange, Portion
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.servers.exchange import ServerLoop
from mpitrain.reporting.throughput import Clock
from mpitrain.training.describing import Small, describe
from mpitrain.training.holdings import Holdings, Kept, kept_of
from mpitrain.training.local import LocalSteps
from mpitrain.training.recorder import Recorder
from mpitrain.training.resuming import Earlier, restore_counts, restore_vectors
from mpitrain.training.saving import Saver
from mpitrain.training.setup import Setup
from mpitrain.training.summing_up import choices_of


class RunSaving:
    """Between a run and its saver; every rank makes one, and calls its methods together.

    Args:
        setup: of the run.
        policy: how the workers share updates.
        roles: who serves and who works.
        saver: writes.
        earlier: the part of the run that it goes on from.
        exchange: this rank's.
        local: what this worker trains alone with between exchanges, where it does.
        recorder: on the chief.
        clock: of the training.
        wall_seconds: of the whole run so far.
    """

    def __init__(
        self,
        setup: Setup,
        policy: Policy,
        roles: Roles,
        saver: Saver,
        earlier: Earlier | None,
        exchange: Exchange | ServerLoop,
        local: LocalSteps | None,
        recorder: Recorder | None,
        clock: Clock,
        wall_seconds: Callable[[], float],
    ) -> None:
        self._setup, self._policy, self._roles = setup, policy, roles
        self._saver, self._earlier, self._exchange = saver, earlier, exchange
        self._local, self._recorder, self._clock, self._wall_seconds = local, recorder, clock, wall_seconds
        rank = setup.world.rank
        self._index = roles.workers.index(rank) if roles.works(rank) else -1
        """Among the workers; -1 of a server."""

    def begin(self) -> list[str]:
        """Find out who holds what, and go on from the checkpoint; what a person should know of that."""
        portion, earlier, world = self._exchange.portion(), self._earlier, self._setup.world
        kept = self._kept(portion)
        holdings = Holdings(world, kept, self._saver.sees)
        self._saver.connect(holdings)
        if earlier is None:
            return []
        name = self._setup.description.optimizer.name
        restored, notes = restore_vectors(world, earlier, holdings, kept, name, self._roles.keeper)
        restore_counts(earlier, restored, portion, name, self._index, self._local)
        return [*notes]

    def save(self, version: int, why: Cut) -> None:
        """At a cut: save, if it is time for that; where the run ends, return when all is on the disk."""
        saver, exchange, step = self._saver, self._exchange, self._setup.step
        if saver.wants(version, why is Cut.LAST, why is Cut.STOPPED):
            small = Small()
            if not isinstance(exchange, ServerLoop) and step is not None:
                local = None if self._local is None else Local(self._local.optimizer.iterations, self._local.begun)
                small = Small(step.carried, exchange.dropped, local=local)
                if self._recorder is not None:
                    small = replace(small, recorded=self._recorder.seen, seconds=self._clock.seconds, state=step.state)
            saver.save(version, self._kept(exchange.portion()), small, self._describe)
        if why is not Cut.ON_THE_WAY:
            saver.flush(version)

    def _kept(self, portion: Portion | None) -> list[Kept]:
        about = self._setup.description
        return kept_of(about.layout, about.optimizer, portion, self._index, self._local)

    def _describe(self, told: list[Small]) -> tuple[Manifest, bytes]:
        exchange = self._exchange
        place, totals, portion = exchange.place(), exchange.totals, exchange.portion()
        assert place is not None
        assert totals is not None
        assert portion is not None
        return describe(
            self._setup,
            self._roles,
            self._policy.mode,
            place,
            totals.copy(),
            told,
            exchange.tally if isinstance(exchange, ServerLoop) else None,
            choices_of(self._setup, self._roles),
            self._wall_seconds(),
            portion.optimizer.iterations,
            self._earlier,
        )
