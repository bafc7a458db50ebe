"""Whether each host can be reached and has what a run needs, asked before the run starts."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from mpitrain.cluster import shared_memory
from mpitrain.errors import InputError
from mpitrain.launching.command import passed_variables, ssh_command
from mpitrain.launching.probe import MARK, Probe, probe

_SSH = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
_SECONDS = 40.0
_AT_ONCE = 32
_MODULE = "mpitrain.launching.probe"


def ask_by_ssh(host: str, python: str, environment: Mapping[str, str] = os.environ) -> Probe:
    """What a host says of itself.

    Args:
        host: by the name under which ssh reaches it.
        python: the interpreter's absolute path, the same there as here.
        environment: of the caller.

    Raises:
        InputError: it cannot be reached, or has not got the interpreter or the package.
    """
    variables = [f"{name}={value}" for name, value in passed_variables(environment).items()]
    remote = shlex.join(["env", *variables, python, "-m", _MODULE])
    return _ask([*ssh_command(environment), *_SSH, host, remote], host, python)


def ask_slurm(nodes: int, python: str) -> list[Probe]:
    """What each node of this Slurm allocation says of itself.

    Raises:
        InputError: one of them has not got the interpreter or the package.
    """
    count = f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"
    command = ["srun", "--mpi=none", "--overlap", "--kill-on-bad-exit=0", *count, "--cpus-per-task=1", "--label"]
    said = _run([*command, python, "-m", _MODULE], "Slurm's nodes")
    found = _probes(said.stdout)
    if len(found) < nodes:
        raise InputError(
            f"srun could start {python} with mpitrain on {len(found)} of {nodes} nodes only ({_last(said.stderr)}): "
            "the environment must lie on a file system that all nodes see"
        )
    return found


def ask_all(hosts: Sequence[str], here: Sequence[str], python: str) -> list[Probe]:
    """What each host says of itself, in order.

    Args:
        hosts: their names.
        here: those that are this machine, which needs no ssh.
        python: the interpreter's absolute path.

    Raises:
        InputError: about the first that cannot tell.
    """
    mine = probe() if here else None
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        asked = [None if host in here else threads.submit(ask_by_ssh, host, python) for host in hosts]
        return [mine if answer is None else answer.result() for answer in asked]  # type: ignore[misc]


def check_alike(hosts: Sequence[str], probes: Sequence[Probe], mine: Probe) -> None:
    """Refuse hosts whose packages or MPI differ from this one's.

    Raises:
        InputError: naming the first.
    """
    for host, told in zip(hosts, probes, strict=True):
        if told.fault:
            raise InputError(f"{host}: {told.fault}")
        if told.mpi != mine.mpi:
            raise InputError(f"{host} has {told.mpi} but {mine.host} {mine.mpi}: install the same MPI on every host")
        differing = [name for name, version in mine.versions.items() if told.versions.get(name) != version]
        if differing:
            differences = ", ".join(f"{n} {told.versions.get(n)} instead of {mine.versions[n]}" for n in differing)
            raise InputError(f"{host} has {differences}: install the same versions on every host")


def check_room(hosts: Sequence[str], probes: Sequence[Probe], ranks: Sequence[int], oversubscribe: bool) -> None:
    """Refuse more ranks on a host than it has cores, or than its /dev/shm has room for.

    Raises:
        InputError: naming the first.
    """
    for host, told, count in zip(hosts, probes, ranks, strict=True):
        if count > told.cores and not oversubscribe:
            raise InputError(
                f"{host} is to get {count} ranks but has {told.cores} cores that a process may use: start fewer, or "
                "accept slower ranks with --oversubscribe"
            )
        need = told.needs * count // 2 if count > 1 else 0
        if told.shm < need:
            free, wanted = told.shm // shared_memory.MIB, need // shared_memory.MIB
            raise InputError(
                f"/dev/shm on {host} has {free} MiB free but {told.mpi} needs {wanted} MiB there for {count} ranks: "
                f"{shared_memory.remedy(need)}, or start fewer ranks on that host"
            )


def _ask(command: Sequence[str], host: str, python: str) -> Probe:
    said = _run(command, host)
    found = _probes(said.stdout)
    if found:
        return found[0]
    reason = _last(said.stderr)
    if said.returncode == 255:
        raise InputError(f"{host} cannot be reached by ssh without a password ({reason}): try `ssh {host} true`")
    if said.returncode in (126, 127):
        raise InputError(
            f"{host} has no {python} ({reason}): the Python environment must have the same path on every host"
        )
    if "No module named" in reason:
        raise InputError(f"{python} on {host} lacks mpitrain or what it needs ({reason}): install it there as here")
    raise InputError(f"{python} -m {_MODULE} fails on {host} with exit code {said.returncode} ({reason})")


def _run(command: Sequence[str], who: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{who} did not answer in {_SECONDS:g} s: try `{shlex.join(command)}`") from None
    except OSError as error:
        raise InputError(f"{command[0]} cannot be started ({error.strerror}): install it") from None


def _probes(text: str) -> list[Probe]:
    return [Probe.of(json.loads(line.split(MARK, 1)[1])) for line in text.splitlines() if MARK in line]


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
