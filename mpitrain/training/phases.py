"""Start-up in phases: each ends with all ranks agreeing that none of them has an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mpitrain.cluster.agreement import AgreedExit, agree
from mpitrain.cluster.memory import is_memory_error, peak_and_node
from mpitrain.cluster.waiting import Stage, now
from mpitrain.cluster.world import World
from mpitrain.errors import InputError, MpitrainError, OutOfMemoryError

log = logging.getLogger("mpitrain")


@contextmanager
def phase(world: World, name: str, meets: bool = False) -> Iterator[None]:
    """Run a block on every rank; leave it only if it succeeded on all.

    Args:
        world: all ranks.
        name: of the phase, for people.
        meets: whether the ranks meet within the block. Then they can agree only on what the user did wrong, which all
            find alike; one rank's own error would leave the others in another meeting, and goes to the hooks.

    Raises:
        AgreedExit: on every rank, when the block raised a :class:`MpitrainError` on any, or memory ran out there.
    """
    error: MpitrainError | None = None
    log.info("%s", name)
    now.work(name)
    try:
        yield
    except Exception as wrong:
        if meets and not isinstance(wrong, InputError):
            raise
        if is_memory_error(wrong):
            error = OutOfMemoryError(f"memory ran out in '{name}': {peak_and_node()}")
        elif isinstance(wrong, MpitrainError):
            error = wrong
        else:
            raise
    agree(world, error, name)


@contextmanager
def needed() -> Iterator[None]:
    """In the block the other ranks wait for this one.

    Raises:
        RuntimeError: in place of a ``sys.exit()`` in the user's code.
    """
    try:
        yield
    except AgreedExit:
        raise
    except SystemExit as left:
        raise RuntimeError(f"sys.exit({left.code!r}) was called while the other ranks needed this one") from left


@contextmanager
def running() -> Iterator[None]:
    """A run is under way: the watchdog is awake, and a signal asks for an agreed end.

    Raises:
        RuntimeError: in place of a ``sys.exit()`` in the user's code.
    """
    now.stage = Stage.START
    try:
        with needed():
            yield
    except AgreedExit:
        now.stage = Stage.REST
        raise
    now.stage = Stage.REST


def check_same(world: World, what: str, mine: dict[str, object]) -> None:
    """Refuse ranks that were started differently.

    Args:
        world: all ranks; each must call it.
        what: is compared, for the sentence.
        mine: this rank's values by name.

    Raises:
        InputError: on every rank, naming the first rank that differs and its differences.
    """
    everyone = world.gather_all(mine, f"comparing {what}")
    for rank, theirs in enumerate(everyone):
        names = [n for n in sorted(everyone[0] | theirs) if everyone[0].get(n) != theirs.get(n)]
        if names:
            differences = ", ".join(f"{n} {theirs.get(n)!r} instead of {everyone[0].get(n)!r}" for n in names)
            raise InputError(
                f"{world.name(rank)} has another {what} than rank 0 ({differences}): start all ranks alike"
            )
