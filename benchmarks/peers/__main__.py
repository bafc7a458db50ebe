"""mpitrain and its peers side by side on the same models, batches and threads; the tables go into docs/performance.md.

    python -m benchmarks.peers

Whole jobs run in turn, in another order in each repeat. Every worker has one TensorFlow thread. Horovod must be in the
environment: ``scripts/install-horovod.sh`` builds it.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers.document import cut, put
from benchmarks.peers.jobs import (
    Job,
    Measured,
    Task,
    horovod_program,
    keras_alone,
    mpitrain,
    multi_worker_mirrored,
    tf1_servers,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "performance.md"
STEPS = {"cnn": 60, "lstm": 150, "mlp": 1500}

OURS: dict[str, Job] = {
    "all-reduce": mpitrain(2),
    "ps-async": mpitrain(3, "--mode", "ps-async", updates=2),
    "ps-sync": mpitrain(3, "--mode", "ps-sync"),
    "one process": mpitrain(1),
}

_EXCHANGE = ("--allreduce", "horovod")


@dataclass(frozen=True)
class Peer:
    """Something that does the same work.

    Args:
        key: by which ``--peers`` names it.
        name: for people.
        ours: the key of ``OURS`` that it is compared with.
        ways: its jobs by what distinguishes them; the one with the best median counts.
    """

    key: str
    name: str
    ours: str
    ways: dict[str, Job]


PEERS = (
    Peer("horovod", "Horovod, its user's program", "all-reduce", {"": horovod_program}),
    Peer(
        "horovod-sum",
        "Horovod's sum in mpitrain's step",
        "all-reduce",
        {
            "HOROVOD_CYCLE_TIME=1": mpitrain(2, *_EXCHANGE, HOROVOD_CYCLE_TIME="1"),
            "HOROVOD_CYCLE_TIME=0": mpitrain(2, *_EXCHANGE, HOROVOD_CYCLE_TIME="0"),
        },
    ),
    Peer("mirrored", "MultiWorkerMirroredStrategy", "all-reduce", {"": multi_worker_mirrored}),
    Peer("tf1-async", "TensorFlow 1 server, asynchronous", "ps-async", {"": tf1_servers(False)}),
    Peer("tf1-sync", "TensorFlow 1 server, synchronous", "ps-sync", {"": tf1_servers(True)}),
    Peer("keras", "Keras alone", "one process", {"": keras_alone}),
)


def measure(task: Task, peers: Sequence[Peer], repeats: int) -> dict[str, list[Measured]]:
    """What every job gave in every repeat, by name."""
    jobs = {name: OURS[name] for name in OURS if any(peer.ours == name for peer in peers)}
    jobs |= {f"{peer.name} {way}": job for peer in peers for way, job in peer.ways.items()}
    found: dict[str, list[Measured]] = {name: [] for name in jobs}
    random = np.random.default_rng(0)
    for repeat in range(repeats):
        for name in random.permutation(list(jobs)).tolist():
            measured = jobs[name](task)
            found[name].append(measured)
            told = f"{task.model} {repeat + 1}/{repeats} {name}: {measured.rate:,.0f} {measured.note}"
            print(told.rstrip(), file=sys.stderr, flush=True)
    return found


def table(task: Task, peers: Sequence[Peer], found: dict[str, list[Measured]]) -> str:
    """One model's table in Markdown."""
    repeats = len(next(iter(found.values())))
    lines = [
        f"**{task.model}**, samples/s per worker, medians of {repeats} interleaved repeats:",
        "",
        "| peer | compared with mpitrain's | peer | mpitrain | ratio (min-max) |",
        "|---|---|---:|---:|---:|",
    ]
    for peer in peers:
        medians = {way: statistics.median(m.rate for m in found[f"{peer.name} {way}"]) for way in peer.ways}
        way = max(medians, key=medians.__getitem__)
        theirs, ours = found[f"{peer.name} {way}"], found[peer.ours]
        ratios = [a.rate / b.rate for a, b in zip(ours, theirs, strict=True)]
        notes = sorted({m.note for m in theirs if m.note} - {"horovod"})
        said = ", ".join(f"`{note}`" for note in [way, *notes] if note)
        name = f"{peer.name} ({said})" if said else peer.name
        ratio = f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f}-{max(ratios):.2f})"
        median = statistics.median(m.rate for m in ours)
        lines.append(f"| {name} | {peer.ours} | {medians[way]:,.0f} | {median:,.0f} | {ratio} |")
    return "\n".join(lines) + "\n"


def place(model: str) -> str:
    """Where a model's table stands in a page."""
    return f"peers {model}"


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="cnn,lstm,mlp")
    parser.add_argument("--peers", default=",".join(peer.key for peer in PEERS), help="some of %(default)s")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of each worker; by default another number for each model")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument(
        "--to", type=Path, help="page with places for the tables; by default, with all peers, the docs'"
    )
    arguments = parser.parse_args()
    keys = arguments.peers.split(",")
    if unknown := {*keys} - {peer.key for peer in PEERS}:
        parser.error(f"--peers names {', '.join(sorted(unknown))}, which is none of {parser.get_default('peers')}")
    peers = [peer for peer in PEERS if peer.key in keys]
    if any(key.startswith("horovod") for key in keys) and importlib.util.find_spec("horovod") is None:
        parser.error(
            f"{sys.executable} has no Horovod: scripts/install-horovod.sh builds it, or leave it out of --peers"
        )
    page = arguments.to or (DOCUMENT if len(peers) == len(PEERS) else None)
    models = arguments.models.split(",")
    if page:
        for model in models:
            cut(page.read_text(), place(model))
    for model in models:
        task = Task(model, arguments.steps or STEPS[model], arguments.dataset)
        text = table(task, peers, measure(task, peers, arguments.repeats))
        print(text, flush=True)
        if page:
            put(page, place(model), text)


if __name__ == "__main__":
    main()
