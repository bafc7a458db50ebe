"""One run in one mode, from a ready setup to a summary."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from mpitrain.cluster.agreement import agree
from mpitrain.cluster.memory import peak_memory
from mpitrain.cluster.roles import Roles
from mpitrain.cluster.watchdog import asked_to_stop
from mpitrain.cluster.world import World
from mpitrain.errors import AgreementError, DivergedError, MpitrainError
from mpitrain.exchange.base import Cut, Exchange, Plan, Spent, Totals, Traffic
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.registry import open_exchange, shards_of
from mpitrain.exchange.servers.exchange import ServerLoop, WorkerExchange
from mpitrain.exchange.servers.shards import balance
from mpitrain.exchange.tickets import Ticket, TicketBook
from mpitrain.parameters.optimizers import SliceOptimizer, is_elementwise, make_optimizer, needs_keras
from mpitrain.parameters.step import Batch, GradientStep
from mpitrain.reporting.history import HistoryRecord, PatientHistory
from mpitrain.reporting.progress import Progress
from mpitrain.reporting.stream import say
from mpitrain.reporting.summary import Summary
from mpitrain.reporting.throughput import Clock
from mpitrain.training import meeting
from mpitrain.training.accumulate import Accumulation
from mpitrain.training.delay import Delay, Sleeper
from mpitrain.training.garbage import short_collections
from mpitrain.training.keras_start import start_tensorflow
from mpitrain.training.local import LocalSteps
from mpitrain.training.loop import Several, train
from mpitrain.training.phases import phase
from mpitrain.training.recorder import Recorder, accuracy_of, mean_loss
from mpitrain.training.resuming import Earlier
from mpitrain.training.run_saving import RunSaving
from mpitrain.training.saving import Saver
from mpitrain.training.schedules import LearningRate
from mpitrain.training.setup import Setup, shared_optimizer, steps_alone, transport_of
from mpitrain.training.summing_up import End, RankReport, summarise

FIRST_STEP = "the first step begins at"
"""In each worker's log, before the seconds since 1970."""

log = logging.getLogger("mpitrain")


@dataclass
class Outcome:
    """What a run gives, the same on every rank but for ``parameters`` and ``state``, which workers alone hold."""

    summary: Summary
    history: list[HistoryRecord]
    validation_sums: np.ndarray | None
    test_sums: np.ndarray | None
    parameters: np.ndarray | None
    state: np.ndarray | None


class Run:
    """One run; every rank constructs it and calls :meth:`execute` together.

    Args:
        setup: from :func:`mpitrain.training.setup.prepare`.
        policy: how the workers share updates.
        roles: who serves and who works.
        book: the tickets.
        cuts: versions at which all ranks meet.
        progress: told by the chief; silent on the others.
        run_dir: where the keeper writes the history; None elsewhere.
        started: ``time.time()`` when what the summary calls wall time began; by default the start of the process.
        saver: saves the run; None where it is not to be saved.
        earlier: the part of the run that it goes on from.
    """

    def __init__(
        self,
        setup: Setup,
        policy: Policy,
        roles: Roles,
        book: TicketBook,
        cuts: tuple[int, ...],
        progress: Progress,
        run_dir: Path | None,
        started: float | None = None,
        saver: Saver | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        self._setup, self._policy, self._roles, self._book = setup, policy, roles, book
        self._started = psutil.Process().create_time() if started is None else started
        self._world: World = setup.world
        about, config = setup.description, setup.config
        self._undivided = about.undivided
        self._alone = steps_alone(config)
        self._saver, self._earlier, self._evaluations = saver, earlier, frozenset(cuts)
        before = None if earlier is None else earlier.manifest
        self._clock = Clock(before=before.train_seconds if before else 0.0)
        self._history: list[HistoryRecord] = [*earlier.history] if earlier else []
        self._unshared: list[HistoryRecord] = []
        self._writer = PatientHistory(run_dir, _warn) if run_dir is not None else None
        self.rate = LearningRate.of(config, about.rate, policy.sharing, book.updates)
        self._stopped = False
        self._plan = Plan(
            book,
            tuple(sorted({*cuts, *saver.when.versions})) if saver else cuts,
            self.rate,
            about.sums,
            about.state,
            about.undivided and not self._alone,
            config.max_bad_gradients,
            lambda: bool(asked_to_stop()),
            saver.due if saver else lambda: False,
            earlier.totals(len(roles.workers) if roles.servers else 0) if earlier else None,
        )
        if saver is not None and self._writer is not None:
            saver.sync = self._writer.sync
        self._shards: list[slice] = []
        self._progress = progress
        self._recorder: Recorder | None = None
        if self._world.rank == roles.chief:
            stale = bool(roles.servers)
            self._recorder = Recorder(
                self._clock,
                book,
                config.log_every,
                stale,
                self._undivided,
                progress,
                self._keep,
                before.recorded if before else None,
                int(before.totals.sums[2]) if before else 0,
            )
        self._sums: dict[str, np.ndarray] = {}
        self._worker: Exchange | None = None
        self._server: ServerLoop | None = None
        self._several: Several | None = None
        self._saving: RunSaving | None = None
        self._samples_seen = 0
        delay = None if config.inject_delay is None else Delay.of(config.inject_delay)
        self._sleep = Sleeper(delay, self._world.rank, config.seed)

    def execute(self) -> Outcome:
        """Train to the end, evaluate, and gather what all ranks have to tell.

        Raises:
            AgreedExit: on every rank, when the run cannot go on.
        """
        setup, world = self._setup, self._world
        about = setup.description
        with phase(world, "cutting the parameters into shards"):
            elementwise = self._alone or is_elementwise(about.optimizer)
            self._shards = shards_of(self._roles, about.layout, elementwise)
        if self._recorder is not None and len(self._shards) > 1:
            self._progress.note(balance(self._shards, about.layout, elementwise))
        if setup.step is not None and setup.initial_state is not None:
            setup.step.state = setup.initial_state.copy()
        served: SliceOptimizer | None = None
        with phase(world, "making the optimizer"):
            if self._roles.serves(world.rank):
                if needs_keras(about.optimizer) and not self._alone:
                    log.info("this server has to load TensorFlow, because Keras computes %s", about.optimizer.name)
                    start_tensorflow(setup.threads)
                served = self._optimizer(self._shards[self._roles.servers.index(world.rank)])
        with phase(world, "connecting the ranks", meets=True):
            exchange = open_exchange(
                self._policy,
                world,
                self._roles,
                about.layout,
                self._shards,
                setup.initial,
                lambda part: served or self._optimizer(part),
                self._plan,
                self._meet,
                setup.allreduce.choice,
                transport_of(setup.config, world),
            )
        if isinstance(exchange, ServerLoop):
            self._server = exchange
        else:
            self._worker = exchange
        if setup.step is not None and self._worker is not None:
            self._several = self._many_batches(setup.step)
        if self._saver is not None:
            self._saving = RunSaving(
                setup,
                self._policy,
                self._roles,
                self._saver,
                self._earlier,
                exchange,
                self._several if isinstance(self._several, LocalSteps) else None,
                self._recorder,
                self._clock,
                lambda: self._wall_seconds,
            )
            for note in self._saving.begin():
                log.info("%s", note)
                self._progress.note(note)
        error: MpitrainError | None = None
        try:
            with short_collections():
                self._train()
        except (DivergedError, AgreementError) as together:
            # All ranks raise these at the same place, so they can still meet; any other error aborts the run.
            self._share_history(0)
            if self._saver is not None:
                self._saver.flush(0)
            error = together
        agree(world, error, "training")
        exchange.close()
        if self._saver is not None:
            self._saver.close()
        with phase(world, "closing the history"):
            if self._writer is not None:
                self._writer.close()
        return self._outcome(exchange.traffic)

    def _optimizer(self, part: slice) -> SliceOptimizer:
        return shared_optimizer(self._setup, self._policy, part)

    def _train(self) -> None:
        if self._server is not None:
            self._server.serve()
        else:
            assert self._worker is not None
            assert self._setup.step is not None
            self._clock.start()
            train(self._worker, self._setup.step, self._batch, self._after_step, self._several)
            self._clock.stop()

    def _after_step(self, totals: Totals) -> None:
        if self._recorder is not None:
            self._recorder.after_step(totals)
        if self._saver is not None and self._roles.servers:
            self._saver.due()  # in an all-reduce every rank is asked anyway

    def _many_batches(self, step: GradientStep) -> Several | None:
        config, about = self._setup.config, self._setup.description
        if self._alone:
            own = make_optimizer(about.optimizer, about.layout)
            return LocalSteps(step, self._batch, config.local_steps, own, self.rate, config.elastic)
        return Accumulation(step, self._batch, config.accumulate) if config.accumulate > 1 else None

    def _batch(self, ticket: Ticket) -> Batch:
        assert self._setup.feed is not None
        if not self._samples_seen:
            log.info("%s %.3f", FIRST_STEP, time.time())
        self._samples_seen += ticket.size
        self._sleep()
        return self._setup.feed.batch(ticket)

    def _keep(self, record: HistoryRecord) -> None:
        self._unshared.append(record)
        if self._writer is not None:
            self._writer.write(record)

    def _meet(self, version: int, why: Cut) -> bool:
        """What all ranks do at a cut, while the training clock stands."""
        with self._clock.paused():
            self._agree(version)
            split = self._setup.config.eval_on
            # Whoever asked for an early end will not wait for an evaluation.
            self._stopped = why is Cut.STOPPED
            if why is Cut.LAST or (version in self._evaluations and not self._stopped):
                sums = self._evaluate(split, version)
                if self._recorder is not None and self._worker is not None:
                    self._recorder.evaluation(self._worker.totals, mean_loss(sums, self._undivided), accuracy_of(sums))
            elif self._recorder is not None and self._worker is not None:
                self._recorder.catch_up(self._worker.totals)
            if self._stopped:
                self._sums.clear()
            self._share_history(version)
            if self._saving is not None:
                self._saving.save(version, why)
            if why is Cut.LAST:
                self._evaluate("validation" if split == "test" else "test", version)
        return self._stopped

    @property
    def _wall_seconds(self) -> float:
        before = self._earlier.manifest.wall_seconds if self._earlier else 0.0
        return time.time() - self._started + before

    def _agree(self, version: int) -> None:
        """Compare parameters, and give every worker the same float state."""
        world, roles = self._world, self._roles
        mine: list[str | None]
        if self._server is not None:
            whole = meeting.fingerprints(self._server.server.parameters, [slice(None)])
            mine = [whole[0] if server == world.rank else None for server in roles.servers]
        else:
            assert self._worker is not None
            mine = [*meeting.fingerprints(self._worker.parameters, self._shards)]
        meeting.check_agreement(world, mine, roles.chief, version)
        size, step = self._setup.description.state, self._setup.step
        if not size:
            return
        if self._policy.together:
            if step is not None and self._worker is not None and self._worker.state is not None:
                step.state = self._worker.state
        else:
            state = step.state if step is not None and self._worker is not None else None
            weight = self._worker.weight if isinstance(self._worker, WorkerExchange) else 0.0
            average = meeting.average_over_workers(world, state, weight, size, version)
            if step is not None:
                step.state = average

    def _evaluate(self, split: str, version: int) -> np.ndarray:
        setup = self._setup
        parameters = self._worker.parameters if self._worker is not None else None
        sums = meeting.evaluate(
            self._world,
            self._roles,
            setup.step,
            setup.feed,
            parameters,
            split,
            setup.description.sums,
            version,
        )
        self._sums[split] = sums
        return sums

    def _share_history(self, version: int) -> None:
        """After it every rank holds the same records, and the keeper has written them."""
        records = self._world.share(self._unshared, self._roles.chief, "sharing the history", version)
        self._unshared = []
        self._history += records
        if self._writer is not None and self._world.rank != self._roles.chief:
            for record in records:
                self._writer.write(record)

    def _outcome(self, traffic: Traffic) -> Outcome:
        world, roles = self._world, self._roles
        spent = self._worker.spent if self._worker is not None else Spent()
        dropped = self._worker.dropped if self._worker is not None else 0
        tally = self._server.tally if self._server is not None else None
        saved = self._saver.outcome if self._saver is not None else None
        mine = RankReport(
            spent, traffic.data, traffic.headers, dropped, peak_memory(), self._setup.threads, tally, saved
        )
        told = world.gather_all(mine, "summing up")
        chiefs = None
        if self._worker is not None and self._recorder is not None:
            chiefs = self._worker.totals, self._recorder.throughput.rate, self._clock.seconds
        totals, rate, train_seconds = world.share(chiefs, roles.chief, "summing up")
        end = End(totals, rate, train_seconds, self._wall_seconds, self._sums, self._history, self._stopped)
        summary = summarise(self._setup, self._policy, roles, end, told, self._earlier)
        step = self._setup.step
        return Outcome(
            summary,
            self._history,
            self._sums.get("validation"),
            self._sums.get("test"),
            self._worker.parameters if self._worker is not None else None,
            step.state.copy() if step is not None else None,
        )


def _warn(text: str) -> None:
    say(f"mpitrain: warning: {text}", to_errors=True)
