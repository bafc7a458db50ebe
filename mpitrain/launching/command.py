"""The command line of each MPI's launcher: what must be added so that a run starts, by MPI and version."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mpitrain.cluster.networks import cards
from mpitrain.launching.hostfile import OPENMPI

SSH = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
"""With these an ssh client notices after 15 s that its host is cut off, and the launcher with it."""

_PASSED = ("PYTHONPATH", "LD_LIBRARY_PATH", "KERAS_BACKEND", "XDG_CACHE_HOME")
_AGENTS = ("PRTE_MCA_plm_ssh_agent", "PRTE_MCA_prte_ssh_agent", "OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC")


@dataclass(frozen=True)
class Launcher:
    """An ``mpirun`` or ``mpiexec``.

    Args:
        path: of it.
        form: ``openmpi`` or ``mpich``, whose options MPICH's relatives take too.
        version: as numbers.
    """

    path: str
    form: str
    version: tuple[int, ...] = (5,)

    @property
    def old_open_mpi(self) -> bool:
        """Whether it is of Open MPI 4, which has other names for much."""
        return self.form == OPENMPI and self.version[0] < 5


@dataclass(frozen=True)
class Start:
    """What is to be started.

    Args:
        launcher: with it.
        ranks: how many.
        arguments: of ``python -m mpitrain``.
        python: the interpreter's absolute path: a bare name is looked up on each host.
        hostfile: in the launcher's form.
        remote: whether hosts other than this one are reached by ssh.
        slurm: whether the launcher reads the hosts from the Slurm job that it runs in.
        crowded: whether ranks outnumber the slots that the launcher counts by itself.
        by_node: deal ranks to the hosts in turn instead of filling them.
        network: (interface, network as ``10.0.0.0/24``) to use, where hosts have several.
    """

    launcher: Launcher
    ranks: int
    arguments: Sequence[str]
    python: str
    hostfile: Path | None = None
    remote: bool = False
    slurm: bool = False
    crowded: bool = False
    by_node: bool = False
    network: tuple[str, str] | None = None


@dataclass(frozen=True)
class Command:
    """A command line, and the variables that it needs in its environment."""

    words: list[str]
    variables: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in self.variables.items()), shlex.join(self.words)])


def build(start: Start, environment: Mapping[str, str] = os.environ, root: bool | None = None) -> Command:
    """The command that starts a run.

    Args:
        start: what.
        environment: of the caller; what it says about the launcher's ssh stays.
        root: whether it is started as root; by default whether this process is.
    """
    form = _open_mpi if start.launcher.form == OPENMPI else _mpich
    command = form(start, environment, os.geteuid() == 0 if root is None else root)
    command.words.extend(["-np", str(start.ranks), start.python, "-m", "mpitrain", *start.arguments])
    return command


def _open_mpi(start: Start, environment: Mapping[str, str], root: bool) -> Command:
    old = start.launcher.old_open_mpi
    runtime = "--mca" if old else "--prtemca"
    # The ranks of a host share its cores themselves; the launcher would leave each with one.
    words = [start.launcher.path, *(["--allow-run-as-root"] if root else []), "--bind-to", "none"]
    if start.hostfile is not None:
        words += ["--hostfile", str(start.hostfile)]
    if start.crowded and old:
        words += ["--oversubscribe", *(["--map-by", "node"] if start.by_node else [])]
    elif start.crowded or start.by_node:
        words += ["--map-by", ("node" if start.by_node else "") + (":OVERSUBSCRIBE" if start.crowded else "")]
    if start.network is not None:
        _, network = start.network
        words += ["--mca", "btl_tcp_if_include", network]
        words += [runtime, "oob_tcp_if_include" if old else "prte_if_include", network]
    if start.remote and not environment.keys() & set(_AGENTS):
        words += [runtime, "plm_rsh_agent" if old else "plm_ssh_agent", shlex.join(["ssh", *SSH])]
    if start.remote or start.slurm:
        for name in passed_variables(environment):
            words += ["-x", name]
    return Command(words)


def _mpich(start: Start, environment: Mapping[str, str], root: bool) -> Command:
    words, variables = [start.launcher.path], {}
    if start.hostfile is not None:
        words += ["-f", str(start.hostfile)]
    if start.by_node:
        words += ["-ppn", "1"]
    if start.network is not None:
        words += ["-iface", start.network[0]]
        # That is for the launcher itself; these are for the ranks' messages, by UCX or libfabric.
        if not environment.keys() & {"UCX_NET_DEVICES", "FI_TCP_IFACE"}:
            variables["UCX_NET_DEVICES"] = ",".join([*cards(), start.network[0]])
            variables["FI_TCP_IFACE"] = start.network[0]
    if start.remote and "HYDRA_LAUNCHER_EXTRA_ARGS" not in environment and not environment.keys() & set(_AGENTS):
        variables["HYDRA_LAUNCHER_EXTRA_ARGS"] = " ".join(SSH)
    return Command(words, variables)


def passed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that must reach the ranks on other hosts."""
    return {name: environment[name] for name in sorted(environment) if name in _PASSED or name.startswith("MPITRAIN_")}


def ssh_command(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The ssh that the launcher would use, as far as the environment says."""
    return next((shlex.split(environment[name]) for name in _AGENTS if environment.get(name)), ["ssh"])
