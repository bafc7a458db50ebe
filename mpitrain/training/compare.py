"""Several ways to train on equal work, one after another in one MPI world."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.cluster.roles import Roles
from mpitrain.cluster.world import World
from mpitrain.config import RunConfig, eval_distance
from mpitrain.errors import InputError
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.tickets import TicketBook
from mpitrain.reporting.comparison import Comparison, ModeResult, write_comparison
from mpitrain.reporting.comparison_table import print_comparison
from mpitrain.reporting.files import writing
from mpitrain.reporting.plot import plot_comparison, require_matplotlib
from mpitrain.reporting.standings import verdict
from mpitrain.reporting.stream import say
from mpitrain.training.contenders import read_contenders
from mpitrain.training.continuing import Begun, clear
from mpitrain.training.delay import Delay
from mpitrain.training.output import Output, open_progress
from mpitrain.training.phases import phase, running
from mpitrain.training.run import Run
from mpitrain.training.setup import Setup, choose, choose_sum, defaults_of, policy_of, prepare, roles_of, transport_of
from mpitrain.training.trainer import plan_lines


@dataclass(frozen=True)
class Entrant:
    """A contender with the part that each rank plays in it."""

    label: str
    config: RunConfig
    roles: Roles

    @property
    def policy(self) -> Policy:
        """How its workers share updates."""
        return policy_of(self.config, self.config.mode, len(self.roles.workers))


def compare_modes(
    world: World, options: RunConfig, modes: str, target_accuracy: float, seeds: int = 1, dry_run: bool = False
) -> Comparison | None:
    """Train in several ways on the same number of samples; print a table, write ``compare.json`` and ``compare.png``.

    Args:
        world: all ranks; each must call it.
        options: what the runs have in common; ``train_steps`` counts updates of the first one, and the others get as
            many samples.
        modes: what is compared, see :func:`mpitrain.training.contenders.read_contenders`.
        target_accuracy: validation accuracy whose time is compared.
        seeds: runs of each, with consecutive seeds.
        dry_run: print the configuration only.

    Returns:
        The comparison, the same on every rank; None after a dry run.

    Raises:
        AgreedExit: on every rank, when something is wrong on any.
    """
    with phase(world, "checking the configuration"):
        require_matplotlib()
        options.validate()
        if not 0 < target_accuracy <= 1:
            raise InputError(f"--target-accuracy is {target_accuracy} but must lie between 0 and 1")
        if not 1 <= seeds <= 1000:
            raise InputError(f"--seeds is {seeds} but must be at least 1 and at most 1000")
        config = defaults_of(options)
        entrants = [
            Entrant(c.label, c.config, roles_of(c.config, c.config.mode, world)) for c in read_contenders(modes, config)
        ]
        for entrant in entrants:
            transport_of(entrant.config, world)
            if config.inject_delay is not None:
                Delay.of(config.inject_delay).check(entrant.roles.workers)
            _ = entrant.policy
    speaker = Roles((), tuple(range(world.size)))
    if world.rank == speaker.chief:
        for line in plan_lines(config, ", then ".join(f"{e.label}: {e.roles.describe()}" for e in entrants)):
            say(line)
    if dry_run:
        return None
    with running():
        output = Output(world, speaker, config, comparison=True)
        with output.accounting():
            comparison = _run_all(world, config, entrants, target_accuracy, seeds, output)
            with phase(world, "writing the comparison"):
                if output.run_dir is not None:
                    write_comparison(output.run_dir, comparison, verdict(comparison.results))
                    plot_comparison(output.run_dir, comparison)
        if world.rank == speaker.chief:
            print_comparison(comparison, sys.stdout)
            say(f"written to {output.path}")
        output.close()
    return comparison


def _run_all(
    world: World, given: RunConfig, entrants: Sequence[Entrant], target_accuracy: float, seeds: int, output: Output
) -> Comparison:
    """Every entrant with the first seed, then with the next: what changes on the machine meanwhile meets all alike."""
    working = tuple(rank for rank in range(world.size) if any(e.roles.works(rank) for e in entrants))
    output.store(given.as_dict() | dict.fromkeys(("mode", "run_dir", "resume")))
    begun = _begun(world, output)
    # What was measured for the first seed holds for all.
    config = given if begun is None else given.replace(**begun.choices)
    results: list[ModeResult] = []
    for seed in range(config.seed, config.seed + seeds):
        setup = prepare(world, config.replace(seed=seed), working)
        choose(setup, setup.full_batch)
        config = config.replace(jit="on" if setup.jit else "off")
        if any(not entrant.roles.servers for entrant in entrants):
            choose_sum(setup)
            choice = setup.allreduce.choice
            owners = "on" if choice.owners_update else "off"
            config = config.replace(allreduce=choice.backend, shard_optimizer=owners)
        books = books_for(setup, entrants)
        now = Begun.of(given, seeds, books[0].samples_after(books[0].updates), world.size, config)
        with phase(world, "storing what is compared"):
            if output.run_dir is not None and begun is not None:
                begun.check(output.run_dir, now)
            elif output.run_dir is not None:
                now.write(output.run_dir)
        begun = now
        for entrant, book in zip(entrants, books, strict=True):
            folder = entrant.label if seeds == 1 else f"{entrant.label}/seed-{seed}"
            own = dataclasses.replace(setup, config=entrant.config.replace(seed=seed))
            result = _complete(world, output, folder, target_accuracy, entrant.label, seed)
            results.append(result or _run(own, output, entrant, book, target_accuracy, folder))
    return Comparison(config.model, setup.description.dataset, results)


def _begun(world: World, output: Output) -> Begun | None:
    """What an interrupted comparison has left."""
    found: Begun | None = None
    with phase(world, "reading what was compared"):
        if output.run_dir is not None:
            found = Begun.read(output.run_dir)
    found = world.share(found, output.keeper, "sharing what was compared")
    return found


def _complete(
    world: World, output: Output, folder: str, target_accuracy: float, label: str, seed: int
) -> ModeResult | None:
    """The result of a run that is complete; of one that was broken off nothing is left."""
    found: ModeResult | None = None
    with phase(world, "looking for an earlier run"):
        if output.run_dir is not None:
            found = ModeResult.read(output.run_dir / folder, target_accuracy, label, seed)
            if found is None:
                clear(output.run_dir / folder)
            else:
                say(f"{folder.replace('/', ', ')} is complete")
    found = world.share(found, output.keeper, "sharing an earlier run")
    return found


def books_for(setup: Setup, entrants: Sequence[Entrant]) -> list[TicketBook]:
    """The tickets of each entrant: the same number of samples for all; the last ticket is cut to fit."""
    samples = setup.description.samples

    def book(entrant: Entrant, total: int | None, updates: int | None) -> TicketBook:
        policy = entrant.policy
        size = dataclasses.replace(setup, config=entrant.config).step_size * policy.parts
        return TicketBook(samples, size, total, updates, policy.tickets)

    config = setup.config
    if config.train_steps is not None:
        total = book(entrants[0], None, config.train_steps).samples_after(config.train_steps)
    else:
        total = max(1, round((config.epochs or 1.0) * samples))
    return [book(entrant, total, None) for entrant in entrants]


def _run(
    setup: Setup, output: Output, entrant: Entrant, book: TicketBook, target_accuracy: float, folder: str
) -> ModeResult:
    started = time.time()
    roles = entrant.roles
    every, unit = eval_distance(setup.config.eval_every)
    with open_progress(setup.world, roles, book, setup.config.eval_on) as progress:
        progress.note(
            f"\n{folder.replace('/', ', ')}: {roles.describe()}, {book.updates:,} updates of {book.full_update} samples"
        )
        run_dir = None if output.run_dir is None else output.run_dir / folder
        with phase(setup.world, "making the run directory"):
            if run_dir is not None:
                with writing(run_dir):
                    run_dir.mkdir(parents=True)
        outcome = Run(setup, entrant.policy, roles, book, book.cuts(every, unit), progress, run_dir, started).execute()
        output.report(progress, outcome, run_dir)
    output.end_if_preempted(outcome)
    return ModeResult.of(outcome.summary, outcome.history, target_accuracy, entrant.label, setup.config.seed)
