"""The last things that a process does when the job cannot end in agreement: nobody it can reach outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

import psutil

from mpitrain.cluster.launcher import Launch
from mpitrain.cluster.mpi import MPI, abort, forget_segments
from mpitrain.cluster.peers import Peer

_OTHERS_WRITE = 0.5  # seconds for the other ranks' last words: an abort kills them
_ABORT_SECONDS = 3.0  # MPI_Abort may wait for a host that is gone
_LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun", "prte", "prted", "orted"}
_LAUNCHERS |= {"hydra_pmi_proxy", "hydra_bstrap_pr"}  # the kernel keeps 15 characters of a name
_LINES = {"ssh", "rsh", "srun"}
# It waits for the rank's end, outlives it, and reads no file of a file system that may hang.
_LAST_HAND = """
end() {
    for process in $2; do
        pid=${process%%:*}
        if read -r name <"/proc/$pid/comm" && [ "$name" = "${process#*:}" ]; then kill -"$1" "$pid"; fi
    done
}
read -r _
sleep 1; end TERM "$1"
sleep 1; end KILL "$1 $2"
"""


def leave(code: int, launch: Launch, speaks: bool = True, stuck: Iterable[Peer] = ()) -> NoReturn:
    """End this process with ``code``, and with it the job.

    Args:
        code: exit code.
        launch: what started this process.
        speaks: whether this is the rank that ends the job for all.
        stuck: ranks on this node that will not end by themselves.
    """
    if speaks and launch.needs_abort and MPI.Is_initialized() and not MPI.Is_finalized():
        time.sleep(_OTHERS_WRITE)
        threading.Thread(target=abort, args=(code,), daemon=True).start()
        time.sleep(_ABORT_SECONDS)
    if not launch.under_mpirun:
        for peer in stuck:
            _kill(peer)
    forget_segments()
    os._exit(code)


def _kill(peer: Peer) -> None:
    with suppress(psutil.Error, OSError):
        process = psutil.Process(peer.pid)
        if abs(process.create_time() - peer.born) < 1.0:
            process.send_signal(signal.SIGKILL)


def end_launcher() -> None:
    """Have this host's launcher or daemon ended when this rank is gone: it would wait for ever for a host cut off.

    The launcher has time to take over the ranks' exit code, and to clean up; then it is killed, with its lines to
    other hosts.
    """
    above = _launchers_above()
    if not above:
        return
    lines = [child for process in above for child in _children(process) if _name(child) in _LINES]
    command = ["/bin/sh", "-c", _LAST_HAND, "sh", *(" ".join(map(_told, part)) for part in (above, lines))]
    ends_with_me, _ = os.pipe()
    nothing = subprocess.DEVNULL
    with suppress(OSError):
        subprocess.Popen(command, cwd="/", stdin=ends_with_me, stdout=nothing, stderr=nothing, start_new_session=True)


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


def _told(process: psutil.Process) -> str:
    return f"{process.pid}:{_name(process)}"


def own_birth() -> float:
    """When this process started, seconds since 1970."""
    return float(psutil.Process(os.getpid()).create_time())
