"""From one rank's facts to all that the ranks of a job have to tell of their hosts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mpitrain.cluster import host
from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.waiting import waiting
from mpitrain.cluster.world import World
from mpitrain.doctor.facts import Facts
from mpitrain.doctor.wire import Wire, probe

_CLOCK_PINGS = 8
_LEVELS = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized"}


@dataclass(frozen=True)
class Examination:
    """What came out, on rank 0.

    Args:
        facts: of every rank, in rank order.
        wires: between neighbouring hosts.
    """

    facts: Sequence[Facts]
    wires: Sequence[Wire]


def examine(world: World, mine: Facts, run_dir: Path, deadline: float, hint: str) -> Examination:
    """What all ranks see; every rank must call it.

    Args:
        world: all ranks.
        mine: this rank's facts, which are completed here.
        run_dir: of a run that rank 0 would write.
        deadline: seconds for the network between two hosts.
        hint: what to do where two hosts do not reach each other.
    """
    mine.thread_level = _LEVELS.get(MPI.Query_thread(), "multiple")
    mine.sees_run_dir = _sees(world, run_dir)
    if world.rank == world.node[0]:
        mine.unresolved = tuple(name for name in dict.fromkeys(world.hosts) if not host.resolve(name))
        mine.offset = _offset(world)
    wires = probe(world, deadline, hint)
    facts = world.gather_all(mine, "gathering what all ranks see")
    gathered = world.gather_all(wires, "gathering what all ranks see")
    return Examination(facts, [wire for part in gathered for wire in part])


def _sees(world: World, run_dir: Path) -> bool | None:
    """Whether this rank sees a file that rank 0 makes where the run directory is, or would be."""
    folder = next((p for p in (run_dir.absolute(), *run_dir.absolute().parents) if p.is_dir()), Path("/"))
    token = secrets.token_hex(8)
    made: Path | None = folder / f".mpitrain-{token}"
    if world.rank == 0:
        try:
            made.touch()  # type: ignore[union-attr]
        except OSError:
            made = None
    made = world.share(made, 0, "looking for the run directory")
    sees = None if made is None else made.exists()
    world.meet("looking for the run directory")
    if world.rank == 0 and made is not None:
        with suppress(OSError):
            made.unlink()
    return sees


def _offset(world: World) -> float:
    """Seconds that this host's clock is ahead of rank 0's; the first rank of every node must call it."""
    offset = 0.0
    for leader in sorted(set(world.leaders) - {0}):
        quickest = float("inf")
        for _ in range(_CLOCK_PINGS):
            if world.rank == 0:
                with waiting("comparing clocks", 0, (world.origin[leader],)):
                    world.comm.recv(source=leader)
                world.comm.send(time.time(), leader)
            elif world.rank == leader:
                begin = time.time()
                world.comm.send(None, 0)
                with waiting("comparing clocks", 0, (world.origin[0],)):
                    theirs = world.comm.recv(source=0)
                end = time.time()
                if end - begin < quickest:
                    quickest, offset = end - begin, (begin + end) / 2 - theirs
    return offset
