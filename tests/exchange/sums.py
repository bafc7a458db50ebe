"""Sums by every back end on worlds of 1 to 8 ranks, made in one launch of eight that splits itself.

mpirun -np 8 python -m tests.exchange.sums FOLDER
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce import messages, mpi
from mpitrain.exchange.allreduce.backend import Backend, OwningBackend
from mpitrain.exchange.allreduce.backends import BACKENDS, NARROWING, open_backend, usable
from mpitrain.exchange.allreduce.choose import choose_allreduce
from mpitrain.exchange.allreduce.wire import WireOverflowError
from mpitrain.parameters.layout import Layout
from mpitrain.parameters.optimizers import OptimizerSpec, make_optimizer

RANKS = 8
WORLDS = ((8,), (7, 1), (6, 2), (5, 3), (4,))
NODES = {2: (1, 1), 3: (2, 1), 4: (2, 2), 5: (2, 3), 6: (3, 1, 2), 7: (3, 4), 8: (4, 4)}
"""Ranks on each host that worlds of this size pretend to be on."""
LARGE = 10**6 + 3
AUTO = 3
"""Ranks of the world in which the choice is tried."""


@dataclass(frozen=True)
class Sum:
    """One vector to sum.

    Args:
        backend: a key of ``BACKENDS``.
        ranks: of the world.
        length: of the vector.
        wire: the type in which it travels.
        nodes: whether the ranks pretend to be on several hosts.
        unused: ranks without a gradient.
        weighted: whether each rank has a factor.
        late: the rank that comes last.
        most: elements that one message may have; None for the usual limit.
        scale: of the values.
    """

    backend: str
    ranks: int
    length: int
    wire: str = "float32"
    nodes: bool = False
    unused: tuple[int, ...] = ()
    weighted: bool = False
    late: int | None = None
    most: int | None = None
    scale: float = 1.0

    @property
    def name(self) -> str:
        """Short, and different for each."""
        told = (
            f"{k}-{v}"
            for k, v in vars(self).items()
            if k not in ("backend", "ranks", "length") and v not in (None, False, ())
        )
        return "_".join([f"{self.backend}-{self.ranks}x{self.length}", *told]).replace(" ", "")

    @property
    def factors(self) -> list[float] | None:
        """One for each rank."""
        return [float(r + 1) for r in range(self.ranks)] if self.weighted else None

    def vector(self, rank: int) -> np.ndarray:
        """That of ``rank``."""
        return _vector(rank, self.length, self.scale)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """The sum in float64, and the sum of the absolute values."""
        ranks = tuple(r for r in range(self.ranks) if r not in self.unused)
        factors = self.factors or [1.0] * self.ranks
        return _expected(self.length, self.scale, ranks, tuple(factors[r] for r in ranks))


@cache
def _vector(rank: int, length: int, scale: float) -> np.ndarray:
    random = np.random.default_rng([rank, length])
    vector = random.standard_normal(length, np.float32) * np.float32(scale)
    vector.flags.writeable = False
    return vector


@cache
def _expected(
    length: int, scale: float, ranks: tuple[int, ...], factors: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    total, sizes = np.zeros(length), np.zeros(length)
    for rank, factor in zip(ranks, factors, strict=True):
        term = _vector(rank, length, scale).astype(np.float64) * factor
        total += term
        sizes += np.abs(term)
    return total, sizes


def sums(ranks: int) -> list[Sum]:
    """All of a world of ``ranks``."""
    found = []
    for backend in (name for name in BACKENDS if name != "horovod"):  # it needs an environment of its own
        nodes = backend == "hierarchical"
        if nodes and ranks == 1:
            continue
        lengths = sorted({0, 1, ranks - 1, ranks, ranks + 1, LARGE})
        found += [Sum(backend, ranks, length, nodes=nodes) for length in lengths]
        if ranks == 1:
            continue
        unused = (0, ranks - 1) if ranks > 2 else (0,)
        found += [
            Sum(backend, ranks, 5000, nodes=nodes, unused=unused),
            Sum(backend, ranks, 5000, nodes=nodes, unused=tuple(range(1, ranks))),
            Sum(backend, ranks, 5000, nodes=nodes, weighted=True, unused=(1,)),
            Sum(backend, ranks, 5000, nodes=nodes, weighted=True, late=ranks - 1),
            Sum(backend, ranks, 5000, nodes=nodes, late=0),
            Sum(backend, ranks, 5000, nodes=nodes, most=37),
        ]
        for wire in ("float16", "bfloat16") if backend in NARROWING else ():
            found += [
                Sum(backend, ranks, 100003, wire, nodes),
                Sum(backend, ranks, 100003, wire, nodes, weighted=True, unused=(1,)),
            ]
        if backend in NARROWING:
            found += [
                Sum(backend, ranks, 100003, "float16", nodes, scale=2e4),
                Sum(backend, ranks, 5000, "float16", nodes, most=37),
            ]
    return found


def pretend(world: World) -> World:
    """The same ranks, as if on the hosts of ``NODES``."""
    leaders: list[int] = []
    for count in NODES[world.size]:
        leaders += [len(leaders)] * count
    return dataclasses.replace(world, leaders=tuple(leaders))


def open_for(case: Sum, world: World) -> Backend:
    """The back end that sums ``case``."""
    seen = pretend(world) if case.nodes else world
    assert not usable(case.backend, seen)
    with pytest.MonkeyPatch.context() as patch:
        for module in (messages, mpi) if case.most else ():
            patch.setattr(module, "MAX_COUNT", case.most)
        return open_backend(case.backend, seen, Layout((), np.dtype(np.float32), case.length), case.wire)


def make(case: Sum, world: World, backend: Backend) -> dict[str, Any]:
    """Sum twice, and by the owners once; what this rank saw."""
    gradient = case.vector(world.rank)
    used = [r not in case.unused for r in range(world.size)]
    seen: dict[str, Any] = {"overflow": 0}

    def put() -> None:
        if case.late == world.rank:
            time.sleep(0.02)
        backend.put(gradient if used[world.rank] else np.empty(0))
        world.meet_closely("summing")

    digests = []
    for _ in range(2):
        put()
        try:
            total = backend.sum(used, case.factors)
        except WireOverflowError:
            seen["overflow"] += 1
            continue
        digests.append(hashlib.sha256(total.tobytes()).hexdigest())
        seen["sent"] = backend.sent
        if world.rank == 0 and len(digests) == 1:
            seen["sum"] = total.copy()
    if hasattr(backend, "sum_own"):
        owning = cast(OwningBackend, backend)
        own = owning.own
        seen["own"] = own.start, own.stop
        vector = owning.buffers()[1]
        put()
        try:
            blocks = owning.sum_own(used, case.factors)
        except WireOverflowError:
            seen["overflow"] += 1
        else:
            for low in range(own.start, own.stop, 30000):
                high = min(low + 30000, own.stop)
                vector[low:high] = blocks(low - own.start, high - own.start)
            owning.publish(vector)
            digests.append(hashlib.sha256(vector.tobytes()).hexdigest())
    world.meet_closely("summing")
    return seen | {"digests": digests}


def chosen(world: World) -> list[Any]:
    """What ``auto`` settles on: on this host, on several, and on several in float16."""
    layout = Layout.of([("vector", (5000,))])
    spec = OptimizerSpec("adam")
    return [
        choose_allreduce(
            where,
            layout,
            "auto",
            "auto",
            True,
            lambda part: make_optimizer(spec, layout, part.start, part.stop),
            wire,
        )
        for where, wire in ((world, "float32"), (pretend(world), "float32"), (pretend(world), "float16"))
    ]


def main(folder: Path) -> None:
    """Make every sum; each rank writes what it saw to ``folder``."""
    from mpitrain.cluster.hooks import install_hooks
    from mpitrain.cluster.job import start_mpi, stop_mpi

    install_hooks()
    everyone = start_mpi()
    for room in WORLDS:
        first = 0
        for ranks in room:
            world = everyone.split(range(first, first + ranks))
            first += ranks
            if world is None:
                continue
            seen = {}
            opened: dict[Any, Backend] = {}
            for case in sums(ranks):
                key = case.backend, case.length, case.wire, case.most
                if key not in opened:
                    opened[key] = open_for(case, world)
                with pytest.MonkeyPatch.context() as patch:
                    for module in (messages, mpi) if case.most else ():
                        patch.setattr(module, "MAX_COUNT", case.most)
                    seen[case.name] = make(case, world, opened[key])
            for backend in opened.values():
                backend.close()
            if ranks == AUTO:
                seen["auto"] = {"chosen": chosen(world)}
            (folder / f"{ranks}.{world.rank}").write_bytes(pickle.dumps(seen))
            world.free()
        everyone.meet("next round")
    stop_mpi()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
