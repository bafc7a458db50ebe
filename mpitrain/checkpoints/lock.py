"""One job at a time in a run directory."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from mpitrain.errors import InputError
from mpitrain.reporting.files import writing

LOCK = ".lock"
_UNABLE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class _Holder(NamedTuple):
    host: str
    pid: int
    born: float

    @property
    def is_gone(self) -> bool:
        """Whether the process ended; of another host's process that cannot be said."""
        if self.host != os.uname().nodename:
            return False
        with suppress(psutil.NoSuchProcess):
            return abs(psutil.Process(self.pid).create_time() - self.born) > 1.0
        return True

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class RunLock:
    """Held until it is released, or until this process is gone: then the kernel, or the file server, gives it up.

    Where a file system has no locks, what the file says of its holder counts.

    Args:
        folder: the run directory.

    Raises:
        InputError: another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        with writing(self._path):
            self._descriptor = self._acquire(folder)
            me = psutil.Process()
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps([os.uname().nodename, me.pid, me.create_time()]).encode(), 0)

    def release(self) -> None:
        """Let others have the directory; twice is fine."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1

    def _acquire(self, folder: Path) -> int:
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._lock(descriptor, folder)
                # Whoever released it meanwhile has removed the file that was just opened.
                if os.fstat(descriptor).st_ino == os.stat(self._path).st_ino:
                    return descriptor
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _lock(self, descriptor: int, folder: Path) -> None:
        remedy = "wait for its end, or choose another --run-dir"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            holder = _holder(descriptor)
            if error.errno in _UNABLE:
                if holder is None or holder.is_gone:
                    return
                remedy += f", or delete {self._path} if you know that it is gone"
            elif not isinstance(error, BlockingIOError):
                raise
        raise InputError(f"the run directory {folder} is in use by {holder or 'another process'}: {remedy}")


def _holder(descriptor: int) -> _Holder | None:
    with suppress(ValueError, TypeError):
        return _Holder(*json.loads(os.pread(descriptor, 4096, 0)))
    return None
