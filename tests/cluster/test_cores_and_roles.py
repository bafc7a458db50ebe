"""How many cores a rank may use, and who does what."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import pytest

from mpitrain.cluster.cores import cgroup_quota, share, slurm_cores, visible_cores
from mpitrain.cluster.roles import Roles, assign
from mpitrain.errors import InputError


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/job/step\n", {}, None),
        ("0::/job/step\n", {"job/step/cpu.max": "max 100000\n"}, None),
        ("0::/job/step\n", {"job/step/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/job/step\n", {"job/step/cpu.max": "max 100000", "job/cpu.max": "200000 100000"}, 2.0),
        ("0::/job/step\n", {"job/step/cpu.max": "300000 100000", "job/cpu.max": "200000 100000"}, 2.0),
        ("0::/job/step\n", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/\n", {"cpu.max": "400000 100000"}, 4.0),
        ("3:cpu,cpuacct:/d\n", {"cpu,cpuacct/d/cpu.cfs_quota_us": "-1", "cpu,cpuacct/d/cpu.cfs_period_us": "1"}, None),
        ("3:cpu,cpuacct:/d\n", {"cpu,cpuacct/d/cpu.cfs_quota_us": "50", "cpu,cpuacct/d/cpu.cfs_period_us": "20"}, 2.5),
        ("3:cpu,cpuacct:/d\n", {"cpu/d/cpu.cfs_quota_us": "30", "cpu/d/cpu.cfs_period_us": "10"}, 3.0),
        ("5:cpuset:/d\n3:cpu:/gone\n", {"cpu/cpu.cfs_quota_us": "20", "cpu/cpu.cfs_period_us": "10"}, 2.0),
        ("5:cpuset:/d\n", {"cpu/cpu.cfs_quota_us": "20", "cpu/cpu.cfs_period_us": "10"}, None),
        ("", {"cpu.max": "100000 100000"}, None),
    ],
)
def test_the_quota_of_the_cgroup(own: str, files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    (tmp_path / "self").write_text(own)
    assert cgroup_quota(tree(tmp_path / "root", files), tmp_path / "self") == quota


def test_the_affinity_mask_is_what_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 8})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert visible_cores(cgroup_root=tmp_path) == {3, 5, 8}


def cores(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


@pytest.mark.parametrize(
    ("masks", "busy", "threads"),
    [
        ([cores(0, 1)], [True], [2]),
        ([cores(0, 1)] * 2, [True] * 2, [1, 1]),
        ([cores(0, 1)] * 3, [True] * 3, [1, 1, 1]),
        ([cores(*range(8))] * 3, [False, True, True], [1, 4, 4]),
        ([cores(0, 1), cores(2, 3)], [True] * 2, [2, 2]),
        ([cores(0), cores(0, 1, 2)], [True] * 2, [1, 2]),
        ([cores(*range(10))] * 3, [True] * 3, [3, 3, 3]),
    ],
)
def test_cores_are_shared_among_those_who_work(masks: list, busy: list[bool], threads: list[int]) -> None:
    assert [share(masks, busy, me) for me in range(len(masks))] == threads


@pytest.mark.parametrize(("text", "found"), [("4", 4), ("0", None), ("", None), ("x", None)])
def test_slurms_cores(text: str, found: int | None) -> None:
    assert slurm_cores({"SLURM_CPUS_PER_TASK": text}) == found
    assert slurm_cores({}) is None


def test_roles() -> None:
    assert assign("allreduce", 3, 7) == Roles((), (0, 1, 2))
    roles = assign("ps-async", 5, 2)
    assert (roles.servers, roles.workers, roles.chief, roles.keeper) == ((0, 1), (2, 3, 4), 2, 0)
    assert [roles.serves(rank) for rank in range(5)] == [True, True, False, False, False]
    assert [roles.works(rank) for rank in range(5)] == [False, False, True, True, True]
    assert roles.describe() == "2 servers (ranks 0-1), 3 workers (ranks 2-4)"
    assert assign("allreduce", 1, 1).describe() == "1 worker (ranks 0), all-reduce"
    assert Roles((1,), (0, 2)).describe() == "1 server (ranks 1), 2 workers (ranks 0, 2)"


@pytest.mark.parametrize(
    ("leaders", "count", "servers"),
    [
        ((0, 0, 0, 0), 2, (0, 1)),
        ((0, 0, 2, 2), 1, (0,)),
        ((0, 0, 2, 2), 2, (0, 2)),
        ((0, 0, 2, 2), 3, (0, 1, 2)),
        ((0, 0, 2, 3, 3, 3), 5, (0, 1, 2, 3, 4)),
        ((0, 1, 0, 1), 2, (0, 1)),
        ((0, 1, 1, 1), 3, (0, 1, 2)),
    ],
)
def test_servers_are_spread_over_hosts(leaders: tuple[int, ...], count: int, servers: tuple[int, ...]) -> None:
    roles = assign("ps-sync", len(leaders), count, leaders)
    assert roles.servers == servers
    assert sorted(roles.servers + roles.workers) == list(range(len(leaders)))


def test_roles_by_node() -> None:
    world: Any = types.SimpleNamespace(leaders=(0, 0, 2, 2), hosts=("a", "a", "b", "b"))
    assert assign("ps-sync", 4, 2, world.leaders).by_node(world, (4, 4, 2, 2), (1, 4, 1, 2)) == [
        "a: 4 cores, 1 server (rank 0), 1 worker (rank 1) with 4 threads each",
        "b: 2 cores, 1 server (rank 2), 1 worker (rank 3) with 2 threads each",
    ]
    assert assign("allreduce", 4, 1).by_node(world, (3, 3, 1, 1), (1, 2, 1, 1)) == [
        "a: 3 cores, 2 workers (ranks 0-1) with 1-2 threads each",
        "b: 1 core, 2 workers (ranks 2-3) with 1 thread each",
    ]


@pytest.mark.parametrize(("size", "servers"), [(3, 3), (3, 0), (2, 2), (2, -1), (1, 1)])
@pytest.mark.parametrize("mode", ["ps-sync", "ps-async"])
def test_roles_that_leave_nobody(mode: str, size: int, servers: int) -> None:
    with pytest.raises(InputError, match=r"at least two|must lie between 1 and"):
        assign(mode, size, servers)
