"""From what the user says about ranks and hosts to the command that starts them, with every host checked first."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from mpitrain.cluster.cores import visible_cores
from mpitrain.cluster.mpi_library import MPICH, Library
from mpitrain.errors import InputError
from mpitrain.launching import hostfile as files
from mpitrain.launching import networks, preflight
from mpitrain.launching.command import Command, Launcher, Start, build
from mpitrain.launching.find import find_launcher
from mpitrain.launching.here import addresses, check_names, is_here
from mpitrain.launching.probe import Probe, probe


@dataclass(frozen=True)
class Wish:
    """What the user asks for.

    Args:
        ranks: how many; by default as many as the hosts have slots, the Slurm job has tasks, or this machine has cores.
        hostfile: in either form; None for this machine, or the nodes of the Slurm job.
        arguments: of ``python -m mpitrain``.
        oversubscribe: accept more ranks than slots, and more slots than cores.
        network: an interface of the first host, or a network, that MPI is to use.
    """

    ranks: int | None
    hostfile: Path | None
    arguments: Sequence[str]
    oversubscribe: bool = False
    network: str | None = None


@dataclass
class Plan:
    """What is to be run.

    Args:
        command: with everything that the MPI needs.
        written: a host file in the launcher's form that was made for it.
        before: a command for people that makes such a file.
    """

    command: Command
    written: Path | None = None
    before: str = ""
    notes: list[str] = field(default_factory=list)

    def clean(self) -> None:
        """Remove what was made for the run."""
        if self.written is not None:
            self.written.unlink(missing_ok=True)


def plan(wish: Wish, *, dry: bool = False, environment: Mapping[str, str] = os.environ) -> Plan:
    """Check everything, and give the command.

    Args:
        wish: of the user.
        dry: whether the command is only to be shown, so that nothing is written.
        environment: of the caller.

    Raises:
        InputError: with the name of the host that stands in the way.
    """
    library = Library.loaded()
    launcher = find_launcher(library)
    if wish.hostfile is not None:
        return _on_hosts(wish, wish.hostfile, launcher, dry)
    if "SLURM_JOB_ID" in environment:
        return _in_slurm(wish, launcher, environment)
    ranks = wish.ranks or len(visible_cores())
    # A core of two threads is one slot for Open MPI.
    crowded = ranks > min(len(visible_cores()), psutil.cpu_count(logical=False) or 1)
    network = networks.choose([probe()], [frozenset()], wish.network)
    return Plan(build(Start(launcher, ranks, wish.arguments, sys.executable, crowded=crowded, network=network)))


def _on_hosts(wish: Wish, path: Path, launcher: Launcher, dry: bool) -> Plan:
    hosts = files.read(path)
    check_names(hosts)
    names = [entry.host for entry in hosts.entries]
    here = [name for name in names if is_here(name)]
    probes = preflight.ask_all(names, here, sys.executable)
    mine = probe()
    preflight.check_alike(names, probes, mine)
    slots = [_slots(entry, told, launcher) for entry, told in zip(hosts.entries, probes, strict=True)]
    ranks = wish.ranks or sum(slots)
    if ranks > sum(slots) and not wish.oversubscribe:
        raise InputError(
            f"{path} has slots for {sum(slots)} ranks but -np is {ranks}: add slots or hosts, or accept slower ranks "
            "with --oversubscribe"
        )
    counts = place(slots, ranks)
    used = [i for i, count in enumerate(counts) if count]
    preflight.check_room(names, probes, counts, wish.oversubscribe)
    known = [addresses(names[i]) for i in used]
    network = networks.choose([probes[i] for i in used], known, wish.network)
    written, before, file = None, "", path
    if hosts.form not in (None, launcher.form):
        file = path.with_name(f"{path.name}.{launcher.form}")
        convert = [sys.executable, "-m", "mpitrain", "hostfile", "convert", str(path), "--to", launcher.form]
        before = shlex.join([*convert, "--output", str(file)])
        if not dry:
            file = written = _write(hosts.text(launcher.form))
    remote = any(names[i] not in here for i in used) or len(used) > 1
    crowded = ranks > sum(slots)
    start = Start(
        launcher,
        ranks,
        wish.arguments,
        sys.executable,
        file,
        remote=remote,
        crowded=crowded,
        by_node=crowded,
        network=network,
    )
    return Plan(build(start), written, before)


def _in_slurm(wish: Wish, launcher: Launcher, environment: Mapping[str, str]) -> Plan:
    nodes = _number(environment, "SLURM_JOB_NUM_NODES", 1)
    tasks = _number(environment, "SLURM_NTASKS", nodes)
    ranks = wish.ranks or tasks
    if ranks > tasks and not wish.oversubscribe:
        raise InputError(
            f"the Slurm job has {tasks} tasks but -np is {ranks}: ask sbatch for --ntasks={ranks}, or accept slower "
            "ranks with --oversubscribe"
        )
    probes = preflight.ask_slurm(nodes, sys.executable)
    names = [told.host for told in probes]
    preflight.check_alike(names, probes, probe())
    network = networks.choose(probes, [addresses(name) for name in names], wish.network)
    crowded = ranks > tasks
    start = Start(
        launcher, ranks, wish.arguments, sys.executable, slurm=True, crowded=crowded, by_node=crowded, network=network
    )
    return Plan(build(start))


def place(slots: Sequence[int], ranks: int) -> list[int]:
    """How many ranks each host gets: they fill the hosts from the top, and what is left over is dealt in turn."""
    if ranks > sum(slots):
        return [ranks // len(slots) + (i < ranks % len(slots)) for i in range(len(slots))]
    counts = []
    for count in slots:
        counts.append(min(count, ranks))
        ranks -= counts[-1]
    return counts


def _slots(entry: files.Entry, told: Probe, launcher: Launcher) -> int:
    """What the launcher takes a host without a number for."""
    if entry.slots is not None:
        return entry.slots
    return 1 if launcher.form == MPICH else told.cores


def _write(text: str) -> Path:
    with tempfile.NamedTemporaryFile("w", prefix="mpitrain-hosts-", delete=False) as file:
        file.write(text)
    return Path(file.name)


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdigit() else otherwise
