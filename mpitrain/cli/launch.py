"""``launch``: a run, for those who do not know their MPI's flags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

_VALUES = {"--np": "--np", "-np": "--np", "-n": "--np", "--hostfile": "--hostfile", "-hostfile": "--hostfile"}
_VALUES |= {"--network": "--network"}
_FLAGS = {"--oversubscribe", "--dry-run"}


def launch(
    arguments: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)] = None,
    *,
    np: Annotated[int | None, Parameter(name=["--np", "-np"])] = None,
    hostfile: Path | None = None,
    network: str | None = None,
    oversubscribe: bool = False,
    dry_run: bool = False,
) -> int:
    """Find the mpirun of this Python's MPI, check every host, and start a run with all that this MPI needs.

    Ctrl-C and SIGTERM ask the run for an agreed end, so that it saves; a second one ends it at once.

    Args:
        arguments: A command and options of mpitrain, --model mlp, or doctor.
        np: Ranks; by default the slots of the host file, the tasks of the Slurm job, or the cores of this machine.
        hostfile: The hosts, in Open MPI's or MPICH's form; without it this machine, or the nodes of the Slurm job.
        network: The interface of the first host, or the network (10.0.0.0/24), that MPI is to use.
        oversubscribe: Accept more ranks than slots, and more slots than cores.
        dry_run: Print the command and end.
    """
    from mpitrain.cluster.launcher import read_launch
    from mpitrain.errors import InputError
    from mpitrain.launching.plan import Wish, plan
    from mpitrain.launching.running import run
    from mpitrain.reporting.stream import say

    if read_launch().size > 1:
        raise InputError("launch starts mpirun by itself: call it once, without mpirun or srun before it")
    if np is not None and not 1 <= np < 2**31:
        raise InputError(f"-np is {np} but must be at least 1")
    given = list(arguments or [])
    _check(given)
    made = plan(Wish(np, hostfile, given, oversubscribe, network), dry=dry_run)
    if dry_run:
        say("\n".join(line for line in (made.before, str(made.command)) if line))
        return 0
    try:
        say(f"mpitrain: {made.command}", to_errors=True)
        return run(made.command)
    finally:
        made.clean()


def split(tokens: Sequence[str]) -> list[str]:
    """The tokens behind ``launch`` with its own options first, and what is the run's behind ``--``."""
    own: list[str] = []
    rest: list[str] = []
    waiting = iter(tokens)
    for token in waiting:
        name, equals, value = token.partition("=")
        if token == "--":
            rest += waiting
        elif name in _VALUES:
            own += [_VALUES[name], *([value] if equals else [t for t in [next(waiting, None)] if t is not None])]
        elif token in _FLAGS:
            own.append(token)
        else:
            rest.append(token)
    return [*own, "--", *rest]


def _check(arguments: Sequence[str]) -> None:
    """Refuse what the ranks would refuse, before any host is asked."""
    from mpitrain.cli.app import make_app
    from mpitrain.cli.arguments import parse
    from mpitrain.config import RunConfig
    from mpitrain.errors import InputError

    command, values = parse(make_app(), arguments)
    if not (hasattr(command, "collective") or hasattr(command, "starts_mpi")):
        raise InputError(f"launch starts train, compare, bench and doctor; {arguments[0]} needs no mpirun")
    values.get("options", RunConfig()).validate()
