"""This process's part in the MPI job: starting and ending MPI, with the watchdog around both."""

from __future__ import annotations

import atexit
import sys
from contextlib import AbstractContextManager, nullcontext, suppress

from mpitrain.cluster import hooks, last_call, last_words, launcher, links, mpi, networks, shared_memory, watchdog
from mpitrain.cluster.gossip import neighbours
from mpitrain.cluster.launcher import Launch
from mpitrain.cluster.mpi import MPI, forget_segments, initialize
from mpitrain.cluster.mpi_library import Library
from mpitrain.cluster.peers import STALL_TIMEOUT, START_TIMEOUT, Limits, Peer
from mpitrain.cluster.waiting import Stage, idle, now, waiting
from mpitrain.cluster.watchdog import Watchdog
from mpitrain.cluster.world import World

_joined: MPI.Comm | None = None  # of all ranks whose watchdogs know each other


def start_mpi(stall_timeout: float = STALL_TIMEOUT, start_timeout: float = START_TIMEOUT) -> World:
    """Start MPI, unless it runs already, and the watchdog; return the world on a communicator of its own.

    Args:
        stall_timeout: seconds without a sign of progress after which the watchdog ends the run.
        start_timeout: the same until the first step is done.

    Raises:
        InputError: where the launcher and the MPI library do not belong together, or this host has no room for it.
    """
    launch = launcher.read_launch()
    if not MPI.Is_initialized():
        launcher.check_library(launch, MPI.Get_library_version())
        launcher.skip_network_probes(launch, MPI.Get_library_version())
        launcher.share_cores()
        shared_memory.fit(launch, Library.loaded())
        networks.leave_out_bridges(Library.loaded())
    now.stage = Stage.START
    dog = watchdog.start(launch, Limits(stall_timeout, start_timeout))
    if not MPI.Is_initialized():
        with waiting("MPI_Init", 0), _hinting(dog, launch):
            initialize()
        # A user's script that made a trainer ends without a word of MPI.
        atexit.register(stop_mpi)
    launcher.check_size(launch, MPI.COMM_WORLD.size)
    # MPI connects two hosts with the first message between them.
    now.stage = Stage.CONNECT
    world = World.of(MPI.COMM_WORLD)
    global _joined
    if _joined is None:
        _join(dog, world, start_timeout)
        _joined = world.comm.Dup()
    dog.hint = ""
    now.stage = Stage.START
    return world


def _hinting(dog: Watchdog, launch: Launch) -> AbstractContextManager[None]:
    """Tell what to do should the hosts not reach one another; the watchdog knows it until the ranks have met."""
    if launch.size <= launcher.local_size_hint():
        return nullcontext()
    dog.hint = networks.hint(Library.loaded())
    return last_call.saying(f"{dog.me.name} does not reach the others; {dog.hint}")


def _join(dog: Watchdog, world: World, timeout: float) -> None:
    """Connect this rank's watchdog with its neighbours'."""
    mine = (dog.me.host, dog.me.pid, dog.me.born)
    told = world.gather_all(mine, "meeting the other ranks")
    # So that nothing stays behind when a rank is killed.
    forget_segments("mpich_shm")
    roster = [
        Peer(rank, host, world.leaders[rank], pid, born, dog.me.heard, dog.me.moved)
        for rank, (host, pid, born) in enumerate(told)
    ]
    neighbourhood = links.connect(world, neighbours(world.leaders, world.rank), timeout)
    near = [rank for rank in neighbourhood if rank in world.node]
    now.page, pages = last_words.exchange(neighbourhood, near, timeout)
    dog.join_job(roster, neighbourhood, pages)


def finalize() -> None:
    """``MPI_Finalize``, once all ranks have come to it.

    Ranks that are ended while they wait inside of it, in PMIx, crash or hang Open MPI's launcher (5.0.11) now and then.
    """
    if _joined is not None:
        # An error means that a rank is lost, which the watchdog tells.
        with suppress(MPI.Exception):
            idle([_joined.Ibarrier()], sleeping=True)
        # Others may end before this rank does: how long all have waited for the last must not count against it then.
        now.moved()
        watchdog.announce()
    mpi.finalize()


def stop_mpi() -> None:
    """End MPI, if it runs, and then the watchdog.

    After an exception that nobody caught the process just ends: the others do not come to ``MPI_Finalize``.
    """
    if MPI.Is_initialized() and not MPI.Is_finalized():
        error = getattr(sys, "last_value", None)
        if error is not None:
            hooks.let_peers_speak(error)
            return
        now.stage = Stage.LEAVING
        with waiting("MPI_Finalize", now.step):
            # Before a rank falls silent in there the others must know that it is not the user's script that works on.
            watchdog.announce()
            finalize()
        watchdog.stop()
