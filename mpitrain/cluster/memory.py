"""How much memory this process and its node use, and whether the kernel has killed a process for want of it."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

import psutil

_COUNTERS = (
    (Path("/proc/vmstat"), "oom_kill"),
    (Path("/sys/fs/cgroup/memory.events"), "oom_kill"),
    (Path("/sys/fs/cgroup/memory/memory.oom_control"), "oom_kill"),
)
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def peak_memory() -> int:
    """The most bytes that this process has held in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def node_memory() -> int:
    """Bytes of memory that this node has for the job: its own, or its cgroup's where that is less."""
    found = [psutil.virtual_memory().total]
    for path in _LIMITS:
        with suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min(found)


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory on this node since it started, as far as told."""
    total = 0
    for path, name in _COUNTERS:
        with suppress(OSError):
            total += sum(int(line.split()[1]) for line in path.read_text().splitlines() if line.split()[0] == name)
    return total


def is_memory_error(error: BaseException) -> bool:
    """Whether an exception says that memory ran out: Python's and numpy's, or TensorFlow's."""
    return isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError"


def gigabytes(size: float) -> str:
    """For people."""
    return f"{size / 1e9:.1f} GB"
