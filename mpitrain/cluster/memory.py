"""How much memory this process and its node use, and whether the kernel has killed a process for want of it."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

import psutil

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def peak_memory() -> int:
    """The most bytes that this process has held in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def node_memory() -> int:
    """Bytes of memory that this node has for the job: its own, or its cgroup's where that is less."""
    found = [psutil.virtual_memory().total]
    for path in _cgroup_files("memory.max", "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min(found)


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory on this node since it started, as far as told."""
    total = 0
    for path in (PROC / "vmstat", *_cgroup_files("memory.events", "memory.oom_control")):
        with suppress(OSError):
            lines = map(str.split, path.read_text().splitlines())
            total += sum(int(count) for name, count in lines if name == "oom_kill")
    return total


def _cgroup_files(new: str, old: str) -> list[Path]:
    """A file of each memory cgroup that this process is in, under its name in version 2 and in version 1."""
    found: list[Path] = []
    with suppress(OSError):
        for line in (PROC / "self" / "cgroup").read_text().splitlines():
            _, controllers, inside = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (CGROUPS / "memory", old) if controllers else (CGROUPS, new)
            group = root / inside.lstrip("/")
            found += [place / name for place in (group, *group.parents) if place.is_relative_to(root)]
    return found


def is_memory_error(error: BaseException) -> bool:
    """Whether an exception, or its cause, says that memory ran out: Python's and numpy's, or TensorFlow's."""
    if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
        return True
    return error.__cause__ is not None and is_memory_error(error.__cause__)


def peak_and_node() -> str:
    """How much this process has needed beside what there is, for people."""
    return f"its peak was {gigabytes(peak_memory())}, the node has {gigabytes(node_memory())}"


def gigabytes(size: float) -> str:
    """For people."""
    return f"{size / 1e9:.1f} GB"
