"""From ``argv`` to an exit code: one voice for errors, no traceback for the user's mistakes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cyclopts import App

from mpitrain.cli.app import make_app
from mpitrain.cli.arguments import parse, with_stored
from mpitrain.cluster.launcher import Launch, abort_start, read_launch, speaks_first
from mpitrain.config import RunConfig
from mpitrain.errors import HostError, InputError, MpitrainError, complain
from mpitrain.models import check_name
from mpitrain.reporting.stream import say

_PAGES = ("--help", "-h", "--version")


def run(argv: Sequence[str]) -> int:
    """Parse, run the command, end MPI; returns the exit code."""
    launch = read_launch()
    app = make_app()
    if any(token in _PAGES for token in argv):
        # Each rank would print the same page.
        if launch.speaks:
            app([next(token for token in argv if token in _PAGES)] if "--version" in argv else argv)
        return 0
    try:
        return _run(app, argv, launch)
    except InputError as wrong:  # no MPI can be loaded
        return fail_to_start(wrong, launch)


def _run(app: App, argv: Sequence[str], launch: Launch) -> int:
    error: MpitrainError | None = None
    command: Callable[..., Any] | None = None
    arguments: dict[str, Any] = {}
    try:
        command, arguments = parse(app, argv)
    except InputError as wrong:
        error = wrong
    if command is not None and hasattr(command, "starts_mpi"):
        return _alone(command, arguments)
    if command is not None and not hasattr(command, "collective"):
        return _alone(command, arguments) if launch.speaks else 0
    told: dict[str, object] = {}
    if command is not None:
        told = _told(command, arguments)
        if _trains(command):
            options = arguments.setdefault("options", RunConfig())
            try:
                options = arguments["options"] = _as_before(app, argv, options)
                error = _get_data(options, launch)
            except InputError as wrong:
                error = wrong
    if error is not None and launch.size == 1:
        return _fail(error)
    return _together(command, arguments, told, error, launch)


def _alone(command: Callable[..., Any], arguments: dict[str, Any]) -> int:
    """Run a command that needs no other ranks."""
    try:
        return int(command(**arguments) or 0)
    except MpitrainError as error:
        return _fail(error)


def _as_before(app: App, argv: Sequence[str], options: RunConfig) -> RunConfig:
    """The options, filled in from the run that is to be resumed, as far as this process can see it."""
    if options.resume is None:
        return options
    from mpitrain.checkpoints.find import stored_options

    stored = stored_options(options.resume, options.run_dir)
    return with_stored(app, argv, options, stored) if stored else options


def _together(
    command: Callable[..., Any] | None,
    arguments: dict[str, Any],
    told: dict[str, object],
    error: MpitrainError | None,
    launch: Launch,
) -> int:
    from mpitrain.cluster.agreement import AgreedExit, agree
    from mpitrain.cluster.hooks import install_hooks
    from mpitrain.cluster.job import start_mpi, stop_mpi
    from mpitrain.training.hosts import compare_hosts
    from mpitrain.training.phases import check_same, needed, phase

    install_hooks()
    try:
        options = arguments.get("options", RunConfig())
        world = start_mpi(options.stall_timeout, options.start_timeout) if error is None else start_mpi()
    except InputError as wrong:
        return fail_to_start(wrong, launch)
    try:
        agree(world, error, "reading the arguments")
        assert command is not None
        compare_hosts(world)
        with phase(world, "comparing the arguments", meets=True):
            check_same(world, "command line", told)
        if options.resume is not None:
            # A host that does not see the run knows nothing of the options that it had.
            arguments["options"] = world.share(options, 0, "sharing the options")
        code = int(command(**arguments, world=world) or 0)
    except AgreedExit as end:
        code = int(end.code)  # type: ignore[arg-type]
    with needed():
        stop_mpi()
    return code


def _get_data(options: RunConfig, launch: Launch) -> MpitrainError | None:
    """Check the options, and find or fetch the data before MPI starts, since fetching may start a process.

    Returns:
        What is wrong.
    """
    from mpitrain.data.fetch import locate

    try:
        options.validate()
        check_name(options.model)
        data_dir = None if options.data_dir is None else Path(options.data_dir)
        locate(options.dataset, data_dir, report=_tell if launch.speaks else _say_nothing)
    except MpitrainError as error:
        return error
    return None


def _told(command: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, object]:
    """What all ranks must have been told alike; where each found its options does not matter."""
    others = {name: value for name, value in arguments.items() if name not in ("options", "config")}
    options = arguments["options"].as_dict() if "options" in arguments else {}
    return {"command": command.__name__} | options | others


def _trains(command: Callable[..., Any]) -> bool:
    """Whether a command takes the options of a run, and so needs data."""
    return "options" in inspect.signature(command).parameters


def fail_to_start(error: InputError, launch: Launch) -> int:
    """Print, on one rank, why MPI is not started; returns the exit code."""
    if speaks_first(launch, error):
        _fail(error)
        if isinstance(error, HostError):
            abort_start(launch, error.exit_code)
    return error.exit_code


def _fail(error: MpitrainError) -> int:
    complain(str(error))
    return error.exit_code


def _tell(text: str) -> None:
    say(f"mpitrain: {text}", to_errors=True)


def _say_nothing(text: str) -> None:
    pass
