"""Start-up in phases: each ends with all ranks agreeing that none of them has an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mpitrain.cluster.agreement import agree
from mpitrain.cluster.world import World
from mpitrain.errors import InputError, MpitrainError

log = logging.getLogger("mpitrain")


@contextmanager
def phase(world: World, name: str) -> Iterator[None]:
    """Run a block on every rank; leave it only if it succeeded on all.

    Raises:
        AgreedExit: on every rank, when the block raised a :class:`MpitrainError` on any.
    """
    error: MpitrainError | None = None
    log.info("%s", name)
    try:
        yield
    except MpitrainError as wrong:
        error = wrong
    agree(world, error, name)


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
