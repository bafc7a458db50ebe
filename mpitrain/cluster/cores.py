"""How many cores a rank may use, and making every thread pool of the process keep to that number.

More runnable threads than cores slow a CPU trainer several times, and each library counts cores for itself.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpitrain.cluster.launcher import local_size_hint

_POOLS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
_ON_IMPORT = "_MPITRAIN_THREADS_SET"


def visible_cores(
    environment: Mapping[str, str] = os.environ, cgroup_root: Path = Path("/sys/fs/cgroup")
) -> frozenset[int]:
    """The cores that this process may run on: its affinity mask, cut to what the cgroup and Slurm grant it.

    ``nproc`` is no measure: it obeys OMP_NUM_THREADS.
    """
    mask = sorted(os.sched_getaffinity(0))
    limits = [len(mask)]
    if (quota := cgroup_quota(cgroup_root)) is not None:
        limits.append(max(1, math.floor(quota)))
    return frozenset(mask[: min(limits)])


def cgroup_quota(root: Path = Path("/sys/fs/cgroup"), self_file: Path = Path("/proc/self/cgroup")) -> float | None:
    """The CPU quota of this process's cgroup in cores (version 2, else 1), or None where there is no limit."""
    quotas = []
    for line in _text(self_file).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder = root / path.lstrip("/")
            for parent in (folder, *folder.parents):
                quota, _, period = _text(parent / "cpu.max").partition(" ")
                if quota.isdigit() and period.strip().isdigit():
                    quotas.append(int(quota) / int(period))
                if parent == root:
                    break
        elif "cpu" in controllers.split(","):
            for folder in (
                root / controllers / path.lstrip("/"),
                root / "cpu" / path.lstrip("/"),
                root / "cpu",
            ):
                quota = _text(folder / "cpu.cfs_quota_us").strip()
                period = _text(folder / "cpu.cfs_period_us").strip()
                if quota.isdigit() and period.isdigit():
                    quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def share(masks: Sequence[frozenset[int]], busy: Sequence[bool], me: int) -> int:
    """Threads for one rank: each core is shared among the busy ranks whose mask holds it.

    Args:
        masks: visible cores of each rank of the node.
        busy: which of them compute; an idle server takes no core from a worker.
        me: index of the rank that asks.
    """
    if not busy[me]:
        return 1
    parts = sum(1 / sum(b and core in mask for mask, b in zip(masks, busy, strict=True)) for core in masks[me])
    return max(1, math.floor(parts + 1e-9))


def slurm_cores(environment: Mapping[str, str] = os.environ) -> int | None:
    """SLURM_CPUS_PER_TASK, where Slurm set it."""
    text = environment.get("SLURM_CPUS_PER_TASK", "")
    return int(text) if text.isdigit() and int(text) > 0 else None


def limit_threads(threads: int, allow_gpu: bool = False) -> None:
    """Set every thread pool of this process to ``threads`` by environment; call it before TensorFlow is imported."""
    for name in _POOLS:
        os.environ[name] = str(threads)
    # One rank's graph has little to run side by side, and a second pool would compete for the same cores.
    os.environ["TF_NUM_INTEROP_THREADS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if not allow_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


def limit_threads_on_import() -> None:
    """Set the thread pools from what the environment tells, before MPI can be asked; called when mpitrain is imported.

    A user's script may import TensorFlow before it makes a trainer; this keeps its pools right. Where TensorFlow came
    first nothing is set, and :func:`set_in_time` says so.
    """
    if "tensorflow" in sys.modules or _ON_IMPORT in os.environ:
        return
    os.environ[_ON_IMPORT] = "1"
    gpu = os.environ.get("MPITRAIN_ALLOW_GPU", "").lower() in ("1", "true", "yes")
    limit_threads(max(1, len(visible_cores()) // local_size_hint()), gpu)


def set_in_time() -> bool:
    """Whether mpitrain was imported before TensorFlow, so that the thread limits reached it."""
    return _ON_IMPORT in os.environ


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
