"""The trainer: puts a run together and executes it. The command line is one of its callers."""

from __future__ import annotations

from typing import Any

from mpitrain.checkpoints.find import checkpoints_of
from mpitrain.cluster.job import start_mpi
from mpitrain.cluster.peers import STALL_TIMEOUT, START_TIMEOUT, Limits
from mpitrain.cluster.waiting import Stage, now
from mpitrain.cluster.world import World
from mpitrain.config import RunConfig, checkpoint_distance, eval_distance
from mpitrain.data.mnist import Dataset
from mpitrain.errors import InputError
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.tickets import Place, TicketBook
from mpitrain.pairs import check
from mpitrain.reporting.history import HistoryRecord
from mpitrain.reporting.stream import say
from mpitrain.reporting.summary import Summary
from mpitrain.training.delay import Delay
from mpitrain.training.hosts import compare_hosts
from mpitrain.training.output import Output, open_progress
from mpitrain.training.phases import phase, running
from mpitrain.training.resuming import Earlier, check_fits, differences, restore_parameters, restore_step
from mpitrain.training.run import Run
from mpitrain.training.saving import Saver, When
from mpitrain.training.setup import Setup, choose, choose_sum, defaults_of, policy_of, prepare, roles_of, transport_of


class Trainer:
    """Trains a Keras model over all ranks of an MPI job.

    Every rank makes a trainer with the same arguments and calls :meth:`fit`::

        trainer = mpitrain.Trainer(make_model, mode="ps-async", servers=1, epochs=3)
        trainer.fit()
        if trainer.is_main:
            print(trainer.summary.test_accuracy)

    Args:
        model: a Keras model, a function that makes one (servers then never make it), or one of the names that
            ``RunConfig.model`` takes.
        config: a configuration; instead of ``options``.
        world: from :func:`mpitrain.cluster.job.start_mpi`; by default MPI is started on all ranks of the job.
        options: fields of :class:`mpitrain.RunConfig`.

    Raises:
        AgreedExit: on every rank, when the options are wrong on any.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        config: RunConfig | None = None,
        world: World | None = None,
        **options: Any,
    ) -> None:
        patience = Limits(config.stall_timeout, config.start_timeout) if config else _limits(options)
        self.world = world or start_mpi(*patience)
        if world is None:
            compare_hosts(self.world)
        self._model = None if isinstance(model, str) else model
        with phase(self.world, "checking the configuration"):
            self.config = _configuration(model, config, options)
            self.roles = roles_of(self.config, self.config.mode, self.world)
            self._policy = policy_of(self.config, self.config.mode, len(self.roles.workers))
            transport_of(self.config, self.world)
            if self.config.inject_delay is not None:
                Delay.of(self.config.inject_delay).check(self.roles.workers)
        now.stage = Stage.REST
        self.history: list[HistoryRecord] = []
        """The records of the run, the same on every rank after :meth:`fit`."""
        self.summary: Summary | None = None

    @property
    def is_main(self) -> bool:
        """Whether this rank is the chief, which speaks for the run and holds the model."""
        return self.world.rank == self.roles.chief

    def describe(self) -> None:
        """Print the resolved configuration, on one rank."""
        if self.is_main:
            say("\n".join(plan_lines(self.config, self.roles.describe())))

    def fit(self, data: Dataset | None = None) -> list[HistoryRecord]:
        """Train, evaluate, and write the run directory.

        Args:
            data: by default what the configuration names.

        Returns:
            The history, the same on every rank.

        Raises:
            AgreedExit: on every rank, when the run cannot start or cannot go on, or a signal ended it early.
        """
        world, roles, config = self.world, self.roles, self.config
        with running():
            self.describe()
            output = Output(world, roles, config)
            with output.accounting():
                setup = prepare(world, config, roles.workers, self._model, data)
                earlier = output.earlier
                if earlier is not None:
                    self._check_and_restore(setup, earlier)
                book, cuts = schedule(setup, self._policy, earlier)
                chosen = earlier.manifest.choices if earlier is not None else None
                choose(setup, setup.full_batch, chosen)
                if not roles.servers:
                    alike = earlier is not None and earlier.manifest.workers == len(roles.workers)
                    choose_sum(setup, chosen if alike else None)
                saver = Saver(
                    world, roles.keeper, checkpoints_of(output.path).path, output.sees, when(config, book), config.keep
                )
                with open_progress(world, roles, book, config.eval_on) as progress:
                    run = Run(
                        setup,
                        self._policy,
                        roles,
                        book,
                        cuts,
                        progress,
                        output.run_dir,
                        saver=saver,
                        earlier=earlier,
                    )
                    output.resolved(setup, book, run.rate.base, progress)
                    outcome = run.execute()
                    if outcome.summary.status == "complete":
                        output.save(setup, outcome)
                    output.report(progress, outcome, output.run_dir)
                self.history, self.summary = outcome.history, outcome.summary
                output.end_if_preempted(outcome)
            output.close()
        return self.history

    def _check_and_restore(self, setup: Setup, earlier: Earlier) -> None:
        world, roles = self.world, self.roles
        with phase(world, "comparing with the checkpoint", meets=True):
            check_fits(earlier, setup.description, self.config)
        restore_parameters(setup, earlier, roles.keeper)
        worker = roles.workers.index(world.rank) if roles.works(world.rank) else None
        restore_step(setup, earlier, worker)
        if self.is_main:
            say(f"mpitrain: going on from {earlier.folder}, at epoch {earlier.manifest.epoch:.2f}")
            ranks = len(roles.workers), len(roles.servers)
            for difference in differences(earlier, self.config, setup.description, *ranks):
                say(f"mpitrain: {difference}")


def when(config: RunConfig, book: TicketBook) -> When:
    """When a run saves."""
    distance, unit = checkpoint_distance(config.checkpoint_every)
    if distance is None:
        return When()
    if unit == "seconds":
        return When(seconds=distance)
    return When(frozenset(book.cuts(distance, unit)), at_end=True)


def schedule(setup: Setup, policy: Policy, earlier: Earlier | None = None) -> tuple[TicketBook, tuple[int, ...]]:
    """The tickets of a run, and the versions at which all ranks meet to evaluate."""
    about, config = setup.description, setup.config
    total = None if config.epochs is None else max(1, round(config.epochs * about.samples))
    size = setup.step_size * policy.parts
    begin, version = (earlier.manifest.place, earlier.manifest.step) if earlier else (Place(), 0)
    book = TicketBook(about.samples, size, total, config.train_steps, policy.tickets, begin, version)
    return book, book.cuts(*eval_distance(config.eval_every))


def plan_lines(config: RunConfig, roles: str) -> list[str]:
    """The resolved configuration for people, a line each."""
    values = {k: v for k, v in config.as_dict().items() if v is not None}
    return [f"mpitrain: {roles}", "  ".join(f"{k}={v}" for k, v in values.items())]


def _limits(options: dict[str, Any]) -> Limits:
    """The watchdog's patience as given; what is no number is refused later, with all other options."""
    given = Limits()._replace(
        stall=options.get("stall_timeout", STALL_TIMEOUT), start=options.get("start_timeout", START_TIMEOUT)
    )
    return given if all(isinstance(value, int | float) and value >= 1 for value in given) else Limits()


def _configuration(model: Any, config: RunConfig | None, options: dict[str, Any]) -> RunConfig:
    if config is None:
        if isinstance(model, str):
            options = {"model": model} | options
        elif model is not None:
            options = {"model": getattr(model, "__name__", getattr(model, "name", type(model).__name__))} | options
        try:
            config = RunConfig(**options)
        except TypeError as error:
            raise InputError(f"Trainer: {error}; its options are the fields of mpitrain.RunConfig") from None
    config.validate()
    check(config)
    return defaults_of(config)
