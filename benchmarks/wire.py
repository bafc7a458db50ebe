"""All-reduce between hosts whose links carry 1 Gbit/s, against what plain TCP gives on the same links. Needs root.

    python -m benchmarks.wire

Makes the hosts out of namespaces of this machine, shapes their links, runs, and takes all of it down. Each host
believes that it has every core, so ranks are bound to none. Beside MPI's all-reduce as it comes stand its algorithms
chosen by hand.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.cluster_lab.hosts import Lab
from tests.support.mpi import mpirun

ELEMENTS = 3274634
BY_HAND = {"recursive doubling": 3, "ring": 4, "segmented ring": 5, "Rabenseifner": 6}
"""Open MPI's algorithms by the numbers of ``coll_tuned_allreduce_algorithm``."""

Seconds = dict[str, list[float]]


def chosen_by_hand(number: int) -> dict[str, str]:
    """The environment in which Open MPI uses one algorithm."""
    return {
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": str(number),
        "OMPI_MCA_coll": "^han",
    }


def measure(lab: Lab, ranks: int, backends: str, extra: Mapping[str, str], wire: str = "float32") -> dict[str, float]:
    """Seconds of each back end, of a copy in memory, and of the wire's limit."""
    hostfile = lab.folder / "hostfile"
    each = ranks // len(lab.names)
    hostfile.write_text("".join(f"{name} slots={each}\n" for name in lab.names))
    passed = [word for name in ("PYTHONPATH", *extra) for word in ("-x", name)]
    command = [mpirun(), "--bind-to", "none", *passed, "--hostfile", str(hostfile), "-np", str(ranks)]
    bench = ["-m", "mpitrain", "bench", "allreduce", "--sizes", str(ELEMENTS), "--backends", backends, "--json"]
    ended = lab.on(lab.names[0], [*command, sys.executable, *bench, "--wire-dtype", wire], 120, extra).check()
    return {timing["backend"]: timing["seconds"] for timing in json.loads(ended.out)}


def rounds(lab: Lab, ranks: int, repeats: int) -> Seconds:
    """All ways, in turn, some times over."""
    ours = ["ring", "halving-doubling"] + (["hierarchical"] if ranks > len(lab.names) else [])
    found: Seconds = {}
    for _ in range(repeats):
        told = measure(lab, ranks, ",".join([*ours, "mpi"]), {})
        for name, seconds in told.items():
            found.setdefault(name, []).append(seconds)
        for wire in ("float16", "bfloat16"):
            narrow = measure(lab, ranks, ours[-1] if len(ours) > 2 else "ring", {}, wire)
            name = next(iter(narrow))
            found.setdefault(f"{name}, {wire}", []).append(narrow[name])
        for name, number in BY_HAND.items():
            by_hand = measure(lab, ranks, "mpi", chosen_by_hand(number))["mpi"]
            found.setdefault(f"mpi, {name}", []).append(by_hand)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="2,3", help="numbers of hosts, separated by commas")
    parser.add_argument("--each", type=int, default=1, help="ranks on each host")
    parser.add_argument("--rate", default="1gbit", help="of each link and direction, in the words of tc")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    for hosts in map(int, arguments.hosts.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            names = [f"node{k + 1}" for k in range(hosts)]
            with Lab(Path(folder), names) as lab:
                lab.shape(arguments.rate)
                found = rounds(lab, hosts * arguments.each, arguments.repeats)
        limits = found.pop("wire limit")
        found.pop("memory copy")
        told = f"{hosts} hosts of {arguments.each} ranks, {arguments.rate}, {ELEMENTS:,} floats"
        print(f"\n{told}, {arguments.repeats} runs each\n")
        print("| way | ms | over the bound (min-max) |\n|---|---:|---:|")
        print(f"| bound by plain TCP | {statistics.median(limits) * 1e3:.1f} | |")
        for name, seconds in sorted(found.items(), key=lambda item: statistics.median(item[1])):
            ratios = [s / limit for s, limit in zip(seconds, limits, strict=True)]
            spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
            middle = statistics.median(seconds) * 1e3
            print(f"| {name} | {middle:.1f} | **{statistics.median(ratios):.2f}** ({spread}) |", flush=True)


if __name__ == "__main__":
    main()
