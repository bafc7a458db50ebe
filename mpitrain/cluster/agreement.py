"""Phases end together: all ranks learn of one rank's error, one voice tells it, all leave with the same code."""

from __future__ import annotations

from mpitrain.cluster.world import World
from mpitrain.errors import MpitrainError, complain


class AgreedExit(SystemExit):
    """All ranks leave together; the reason has been printed by one of them.

    It is a ``SystemExit``, so that a user's script ends with the code and without a traceback on every rank.
    """

    def __init__(self, code: int, reason: str, rank: int | None = None) -> None:
        super().__init__(int(code))
        self.reason = reason
        self.rank = rank
        """Of the job; the one that the reason is about, if it is one."""


def agree(world: World, error: MpitrainError | None, phase: str) -> None:
    """End a phase: return on every rank if no rank has an error, else leave on every rank.

    Raises:
        AgreedExit: with the exit code of the lowest rank's error, whose sentence that rank has printed.
    """
    errors = world.gather_all((error.exit_code, str(error)) if error else None, phase)
    first = next((rank for rank, e in enumerate(errors) if e), None)
    if first is None:
        return
    code, reason = errors[first]
    everywhere = all(e == errors[first] for e in errors)
    if world.rank == first:
        complain(reason if everywhere else f"{world.name(first)}: {reason}")
    # The launcher kills the others at the first non-zero exit, so nobody leaves before the voice has spoken.
    world.meet(phase)
    raise AgreedExit(code, reason, None if everywhere else world.origin[first])
