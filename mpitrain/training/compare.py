"""Several modes on equal work, one after another in one MPI world."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from mpitrain.cluster.roles import Roles
from mpitrain.cluster.world import World
from mpitrain.config import RunConfig, eval_distance
from mpitrain.errors import InputError
from mpitrain.exchange.registry import MODES
from mpitrain.exchange.tickets import TicketBook
from mpitrain.pairs import check
from mpitrain.reporting.comparison import Comparison, ModeResult, print_comparison, write_comparison
from mpitrain.reporting.plot import plot_comparison, require_matplotlib
from mpitrain.reporting.stream import say
from mpitrain.training.delay import Delay
from mpitrain.training.output import Output, open_progress
from mpitrain.training.phases import phase, running
from mpitrain.training.run import Run
from mpitrain.training.setup import Setup, choose, choose_sum, defaults_of, policy_of, prepare, roles_of, transport_of
from mpitrain.training.trainer import plan_lines


def compare_modes(
    world: World, options: RunConfig, modes: Sequence[str], target_accuracy: float, dry_run: bool = False
) -> Comparison | None:
    """Train in each mode on the same number of samples; print one table, write ``compare.json`` and ``compare.png``.

    Args:
        world: all ranks; each must call it.
        options: the runs; ``train_steps`` counts updates of the first mode, and the others get as many samples.
        modes: keys of ``MODES``.
        target_accuracy: validation accuracy whose time is compared.
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
        for mode in modes:
            if mode not in MODES:
                raise InputError(f"--modes names {mode!r}, which is none of {', '.join(MODES)}")
        if len(set(modes)) != len(modes):
            raise InputError("--modes names a mode twice: name each once")
        check(options, modes)
        config = defaults_of(options)
        roles = {mode: roles_of(config, mode, world) for mode in modes}
        transport_of(config, world)
        for mode in modes:
            if config.inject_delay is not None:
                Delay.of(config.inject_delay).check(roles[mode].workers)
            policy_of(config, mode, len(roles[mode].workers))
    speaker = Roles((), tuple(range(world.size)))
    if world.rank == speaker.chief:
        for line in plan_lines(config, ", then ".join(r.describe() for r in roles.values())):
            say(line)
    if dry_run:
        return None
    with running():
        return _compare(world, config, roles, modes, target_accuracy, speaker)


def _compare(
    world: World,
    config: RunConfig,
    roles: dict[str, Roles],
    modes: Sequence[str],
    target_accuracy: float,
    speaker: Roles,
) -> Comparison:
    output = Output(world, speaker, config, "compare")
    with output.accounting():
        comparison = _run_all(world, config, roles, modes, target_accuracy, output)
        with phase(world, "writing the comparison"):
            if output.run_dir is not None:
                write_comparison(output.run_dir, comparison)
                plot_comparison(output.run_dir, comparison)
    if world.rank == speaker.chief:
        print_comparison(comparison, sys.stdout)
        say(f"written to {output.path}")
    output.close()
    return comparison


def _run_all(
    world: World,
    config: RunConfig,
    roles: dict[str, Roles],
    modes: Sequence[str],
    target_accuracy: float,
    output: Output,
) -> Comparison:
    working = tuple(rank for rank in range(world.size) if any(r.works(rank) for r in roles.values()))
    setup = prepare(world, config, working)
    books = books_for(setup, modes, roles)
    output.store(config.as_dict() | {"mode": None, "run_dir": None})
    choose(setup, setup.full_batch)
    if any(not roles[mode].servers for mode in modes):
        choose_sum(setup)
    results = [_run(setup, output, mode, roles[mode], books[mode], target_accuracy) for mode in modes]
    return Comparison(config.model, setup.description.dataset, results)


def books_for(setup: Setup, modes: Sequence[str], roles: dict[str, Roles]) -> dict[str, TicketBook]:
    """The tickets of each mode: the same number of samples in all; the last ticket is cut to fit."""
    about, config = setup.description, setup.config
    policies = {mode: policy_of(config, mode, len(roles[mode].workers)) for mode in modes}

    def book(mode: str, samples: int | None, updates: int | None) -> TicketBook:
        policy = policies[mode]
        return TicketBook(about.samples, setup.step_size * policy.parts, samples, updates, policy.tickets)

    if config.train_steps is not None:
        samples = book(modes[0], None, config.train_steps).samples_after(config.train_steps)
    else:
        samples = max(1, round((config.epochs or 1.0) * about.samples))
    return {mode: book(mode, samples, None) for mode in modes}


def _run(setup: Setup, output: Output, mode: str, roles: Roles, book: TicketBook, target_accuracy: float) -> ModeResult:
    started = time.time()
    every, unit = eval_distance(setup.config.eval_every)
    with open_progress(setup.world, roles, book, setup.config.eval_on) as progress:
        progress.note(f"\n{mode}: {roles.describe()}, {book.updates:,} updates of {book.full_update} samples")
        run_dir = None if output.run_dir is None else output.run_dir / mode
        if run_dir is not None:
            run_dir.mkdir()
        policy = policy_of(setup.config, mode, len(roles.workers))
        outcome = Run(setup, policy, roles, book, book.cuts(every, unit), progress, run_dir, started).execute()
        output.report(progress, outcome, run_dir)
    output.end_if_preempted(outcome)
    return ModeResult.of(outcome.summary, outcome.history, target_accuracy)
