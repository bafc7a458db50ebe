"""The last things that a process does when the job cannot end in agreement: nobody it can reach outlives it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

import psutil

from mpitrain.cluster.launcher import Launch
from mpitrain.cluster.mpi import MPI, abort
from mpitrain.cluster.peers import Peer

_ABORT_SECONDS = 3.0  # MPI_Abort may wait for a host that is gone
_LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun", "prte", "prted", "orted"}
_LAUNCHERS |= {"hydra_pmi_proxy", "hydra_bstrap_pr", "hydra_bstrap_proxy"}


def leave(code: int, launch: Launch, speaks: bool = True, stuck: Iterable[Peer] = ()) -> NoReturn:
    """End this process with ``code``, and with it the job.

    mpirun and mpiexec kill the rest of a job whose rank leaves with an error. srun does not, as it is set up by
    default: it is told by ``MPI_Abort``.

    Args:
        code: exit code.
        launch: what started this process.
        speaks: whether this is the rank that ends the job for all.
        stuck: ranks on this node that will not end by themselves.
    """
    if speaks and launch.under_srun and MPI.Is_initialized() and not MPI.Is_finalized():
        threading.Thread(target=abort, args=(code,), daemon=True).start()
        time.sleep(_ABORT_SECONDS)
    if not launch.under_mpirun:
        for peer in stuck:
            _kill(peer)
    os._exit(code)


def _kill(peer: Peer) -> None:
    with suppress(psutil.Error, OSError):
        process = psutil.Process(peer.pid)
        if abs(process.create_time() - peer.born) < 1.0:
            process.send_signal(signal.SIGKILL)


def end_launcher(grace: float = 2.0) -> None:
    """End this host's launcher or daemon, which would wait for ever for a host that is cut off.

    First the ssh clients that hold its line to other hosts: Open MPI's mpirun then ends by itself, with its own code.
    """
    above = _launchers_above()
    lines = [child for process in above for child in _children(process) if _name(child) == "ssh"]
    _kill_all(lines)
    if lines:
        psutil.wait_procs(above, timeout=grace)
    _kill_all(above)


def _launchers_above() -> list[psutil.Process]:
    """The processes that started this one and belong to the launcher, nearest first."""
    found: list[psutil.Process] = []
    with suppress(psutil.Error):
        for parent in psutil.Process().parents():
            if _name(parent) not in _LAUNCHERS:
                break
            found.append(parent)
    return found


def _children(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return list(process.children(recursive=True))
    return []


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.name())
    return ""


def _kill_all(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)


def own_birth() -> float:
    """When this process started, seconds since 1970."""
    return float(psutil.Process(os.getpid()).create_time())
