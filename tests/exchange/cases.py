"""The runs that the exchange tests look at. All are made in one launch of seven ranks, which splits itself into worlds.

mpirun -np 7 python -m tests.exchange.cases FOLDER
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from tests.support.numpy_run import Case, run_case

RANKS = 7

CASES = [
    *(
        Case(f"allreduce-{n}-{optimizer}", "allreduce", n, optimizer=optimizer, batch=60 // n, steps=20)
        for optimizer in ("sgd", "adam")
        for n in (1, 2, 4)
    ),
    *(
        Case(f"allreduce-{backend}{'-owners' * owners}", "allreduce", 4, batch=15, allreduce=backend, owners=owners)
        for backend in ("ring", "halving-doubling", "shared", "hierarchical")
        for owners in (False, True)
    ),
    # Parameters travel whole, gradients narrow.
    Case("allreduce-float16", "allreduce", 3, allreduce="ring", wire="float16"),
    Case("allreduce-float16-owners", "allreduce", 3, allreduce="ring", owners=True, wire="float16"),
    *(
        Case(
            f"allreduce-{backend}-starved",
            "allreduce",
            3,
            samples=26,
            batch=6,
            steps=9,
            every=2,
            allreduce=backend,
            owners=owners,
            poison={1: (4,)},
            max_bad=1,
        )
        for backend, owners in (("ring", True), ("halving-doubling", False), ("hierarchical", True))
    ),
    *(
        Case(
            f"ps-sync-{k}x{n}-{optimizer}",
            "ps-sync",
            n + k,
            servers=k,
            optimizer=optimizer,
            batch=60 // n,
            steps=20,
        )
        for optimizer in ("sgd", "adam")
        for k, n in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (3, 1), (3, 2), (3, 4))
    ),
    *(
        Case(f"ps-async-{k}x{n}", "ps-async", n + k, servers=k, steps=43, jitter=0.004)
        for k, n in ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (3, 2), (3, 4))
    ),
    # Through messages what the others send through the node's memory.
    *(
        Case(f"ps-sync-{k}x{n}-adam-mpi", "ps-sync", n + k, servers=k, batch=60 // n, transport="mpi")
        for k, n in ((1, 2), (2, 4), (3, 2))
    ),
    # Some workers on their server's node, others on another: one server and both kinds, or one server on each node.
    *(
        Case(f"ps-sync-{k}x{n}-adam-both", "ps-sync", n + k, servers=k, batch=60 // n, transport="both", nodes=2)
        for k, n in ((1, 4), (2, 4), (3, 2), (2, 1))
    ),
    Case("ps-async-both", "ps-async", 7, servers=3, steps=43, jitter=0.004, transport="both", nodes=2),
    Case("ps-sync-backup-both", "ps-sync", 6, servers=2, backups=1, slow={2: 0.02}, transport="both", nodes=2),
    Case("ps-sync-bad-both", "ps-sync", 5, servers=2, max_bad=3, poison={3: (4, 9)}, transport="both", nodes=2),
    # Gradients of which few rows are not zero, moved whole, or as rows in each way.
    Case("ps-sync-rows-whole", "ps-sync", 3, servers=1, rows=False),
    *(
        Case(f"ps-sync-rows-{k}-{transport}", "ps-sync", k + 2, servers=k, rows=True, transport=transport, nodes=nodes)
        for k in (1, 3)
        for transport, nodes in (("mpi", 1), ("shared", 1), ("both", 2))
    ),
    Case("ps-async-mpi", "ps-async", 6, servers=2, steps=43, jitter=0.004, transport="mpi"),
    Case("ps-async-bound-mpi", "ps-async", 4, servers=1, bound=1, steps=40, jitter=0.004, transport="mpi"),
    Case("ps-async-bad-mpi", "ps-async", 5, servers=2, max_bad=3, steps=40, poison={3: (4, 6)}, transport="mpi"),
    Case("ps-sync-backup-mpi", "ps-sync", 5, servers=2, backups=1, slow={2: 0.02}, transport="mpi"),
    Case("ps-sync-stop-mpi", "ps-sync", 4, servers=2, stop={3: 9}, every=5, transport="mpi"),
    # Two epochs by samples, the last ticket cut: 2 x 211 - 5.
    Case("allreduce-samples", "allreduce", 3, steps=None, total_samples=417),
    Case("ps-sync-samples", "ps-sync", 4, servers=1, steps=None, total_samples=417),
    Case("ps-async-samples", "ps-async", 4, servers=1, steps=None, total_samples=417),
    # The last global batch of an epoch holds fewer samples than there are workers: some get none.
    Case("allreduce-starved", "allreduce", 4, samples=26, batch=6, steps=9, every=2),
    Case("ps-sync-starved", "ps-sync", 6, servers=2, samples=26, batch=6, steps=9, every=2),
    Case("allreduce-sum", "allreduce", 3, undivided=True),
    Case("ps-sync-sum", "ps-sync", 4, servers=1, undivided=True),
    Case("one-sum", "allreduce", 1, batch=30, undivided=True),
    # Messages of at most 50 elements, where 2**31 - 1 are the limit.
    Case("allreduce-chunked", "allreduce", 2, batch=30, max_count=50),
    Case("ps-sync-chunked", "ps-sync", 4, servers=2, batch=30, transport="mpi", max_count=50),
    Case("allreduce-bad-allowed", "allreduce", 3, max_bad=3, poison={1: (4, 9)}),
    Case("ps-sync-bad-allowed", "ps-sync", 4, servers=1, max_bad=3, poison={2: (4, 9)}),
    Case(
        "ps-async-bad-allowed",
        "ps-async",
        5,
        servers=2,
        max_bad=3,
        steps=40,
        jitter=0.003,
        poison={3: (4, 6)},
    ),
    # One worker far slower than the others: what it brings is old.
    Case(
        "ps-async-straggler",
        "ps-async",
        4,
        servers=1,
        steps=40,
        slow={1: 0.03, 2: 0.002, 3: 0.002},
        every=None,
    ),
    # The same where no worker may run ahead, or not far.
    *(
        Case(
            f"ps-async-bound-{bound}",
            "ps-async",
            5,
            servers=2,
            bound=bound,
            steps=40,
            slow={2: 0.02, 3: 0.001, 4: 0.001},
            every=17,
        )
        for bound in (0, 1, 3)
    ),
    # One worker far slower than the others, which are enough for an update; or all as fast.
    Case(
        "ps-sync-backup", "ps-sync", 5, servers=2, backups=1, steps=40, slow={2: 0.05, 3: 0.002, 4: 0.002}, every=None
    ),
    Case("ps-sync-backup-cuts", "ps-sync", 4, servers=1, backups=1, slow={3: 0.02}),
    Case("ps-sync-backups", "ps-sync", 7, servers=3, backups=2, jitter=0.004),
    Case("ps-sync-backup-samples", "ps-sync", 4, servers=1, backups=1, jitter=0.003, steps=None, total_samples=417),
    Case("ps-sync-backup-bad", "ps-sync", 5, servers=2, backups=1, jitter=0.003, max_bad=3, poison={3: (4, 6)}),
    Case("ps-sync-backup-stop", "ps-sync", 5, servers=2, backups=1, jitter=0.003, stop={3: 6}, every=5),
    # Several pushes make an update; gradients are corrected for their age.
    Case("ps-async-soft", "ps-async", 5, servers=2, quorum=2, jitter=0.003, steps=20),
    Case("ps-async-soft-mpi", "ps-async", 4, servers=1, quorum=3, jitter=0.003, steps=20, transport="mpi"),
    Case("ps-async-soft-samples", "ps-async", 4, servers=1, quorum=4, jitter=0.003, steps=None, total_samples=417),
    Case("ps-async-soft-bad", "ps-async", 5, servers=2, quorum=2, max_bad=3, steps=20, poison={3: (4, 6)}),
    Case("ps-async-soft-stop", "ps-async", 5, servers=2, quorum=4, jitter=0.003, stop={3: 6}, every=5),
    Case("ps-async-damped", "ps-async", 5, servers=2, damping=True, jitter=0.003, steps=40),
    *(
        Case(
            f"ps-async-compensated{'-mpi' * (transport == 'mpi')}",
            "ps-async",
            5,
            servers=2,
            compensation=0.5,
            adaptive=transport == "mpi",
            bound=2,
            jitter=0.003,
            steps=40,
            transport=transport,
        )
        for transport in ("shared", "mpi")
    ),
    # The next gradient is computed while the one before is under way.
    Case("ps-sync-piped", "ps-sync", 5, servers=2, pipeline=True),
    Case("ps-sync-piped-mpi", "ps-sync", 5, servers=2, pipeline=True, transport="mpi"),
    Case("ps-sync-piped-both", "ps-sync", 5, servers=2, pipeline=True, transport="both", nodes=2),
    Case("ps-sync-piped-rows", "ps-sync", 5, servers=2, pipeline=True, transport="both", nodes=2, rows=True),
    Case("ps-sync-piped-rows-whole", "ps-sync", 5, servers=2, pipeline=True, rows=False),
    Case("ps-sync-piped-bad", "ps-sync", 4, servers=1, pipeline=True, max_bad=3, poison={2: (4, 9)}),
    Case("ps-async-piped", "ps-async", 5, servers=2, pipeline=True, jitter=0.003, steps=40),
    Case("ps-async-piped-mpi", "ps-async", 5, servers=2, pipeline=True, jitter=0.003, steps=40, transport="mpi"),
    Case("ps-async-piped-one", "ps-async", 2, servers=1, pipeline=True, steps=None, total_samples=417),
    Case("ps-async-piped-stop", "ps-async", 5, servers=2, pipeline=True, stop={3: 5}, every=10, steps=40, jitter=0.003),
    Case("ps-async-bound-stop", "ps-async", 5, servers=2, bound=1, jitter=0.003, stop={0: 9}, every=10, steps=40),
    # One rank is asked to stop: a worker, server 0, another server; before a cut, at one, at the last one.
    *(
        Case(f"allreduce-stop-{rank}-{at}", "allreduce", 3, stop={rank: at}, every=5)
        for rank, at in ((0, 0), (1, 4), (2, 5), (2, 20))
    ),
    *(
        Case(f"ps-sync-stop-{rank}-{at}", "ps-sync", 4, servers=2, stop={rank: at}, every=5)
        for rank, at in ((0, 0), (0, 4), (1, 4), (1, 0), (2, 0), (3, 5), (3, 9), (2, 20))
    ),
    *(
        Case(
            f"ps-async-stop-{rank}-{at}",
            "ps-async",
            5,
            servers=2,
            stop={rank: at},
            every=10,
            steps=40,
            jitter=0.003,
        )
        for rank, at in ((0, 0), (0, 9), (1, 10), (1, 23), (2, 0), (3, 5), (4, 8))
    ),
    Case("allreduce-stop-bad", "allreduce", 3, stop={1: 6}, max_bad=3, poison={1: (4, 5), 2: (2,)}),
    Case("allreduce-stop-starved", "allreduce", 4, stop={3: 3}, samples=26, batch=6, steps=9, every=2),
    Case("ps-sync-stop-bad", "ps-sync", 4, servers=1, stop={2: 6}, max_bad=3, poison={2: (4, 5), 3: (2,)}),
    Case("ps-async-stop-bad", "ps-async", 4, servers=1, stop={0: 6}, max_bad=3, steps=40, poison={2: (1, 2), 3: (2,)}),
    Case("ps-async-stop-all", "ps-async", 5, servers=2, stop={0: 7, 1: 8, 2: 2, 3: 3, 4: 2}, steps=40, jitter=0.003),
]


def rounds() -> list[list[Case]]:
    """The cases packed so that each round fits the ranks."""
    packed: list[list[Case]] = []
    for case in sorted(CASES, key=lambda c: -c.ranks):
        for room in packed:
            if sum(c.ranks for c in room) + case.ranks <= RANKS:
                room.append(case)
                break
        else:
            packed.append([case])
    return packed


def main(folder: Path) -> None:
    """Run every case; each rank writes what it saw to ``folder``."""
    from mpitrain.cluster.hooks import install_hooks
    from mpitrain.cluster.job import start_mpi, stop_mpi

    install_hooks()
    everyone = start_mpi()
    for room in rounds():
        first = 0
        mine = None
        for case in room:
            world = everyone.split(range(first, first + case.ranks))
            first += case.ranks
            if world is not None:
                mine = case, world
        if mine is not None:
            case, world = mine
            seen = run_case(case, world)
            (folder / f"{case.name}.{world.rank}").write_bytes(pickle.dumps(seen))
            world.free()
        everyone.meet("next round")
    assert not {"tensorflow", "ml_dtypes"} & set(sys.modules)
    stop_mpi()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
