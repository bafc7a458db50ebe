"""``hostfile``: check host files, convert them, make one from a TensorFlow 1 job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from mpitrain.reporting.stream import say

Form = Literal["openmpi", "mpich"]

app = App(name="hostfile", help="Check, convert and make host files.")


@app.command
def check(file: Path, *, mpi: Form | None = None, oversubscribe: bool = False) -> int:
    """Say what is wrong in a host file, with its line and column, else which ranks its hosts get.

    Args:
        file: The host file.
        mpi: The MPI that is to read it; by default the one whose form the file has.
        oversubscribe: Accept more slots on this machine than it has cores.
    """
    from mpitrain.launching import here, hostfile

    hosts = hostfile.read(file, mpi)
    here.check_names(hosts)
    if not oversubscribe:
        here.check_cores(hosts)
    read_by = hostfile.NAMES[hosts.form] if hosts.form else "any MPI"
    many = f"{len(hosts.entries)} host{'s' if len(hosts.entries) > 1 else ''}"
    if hosts.slots is None:
        say(f"{file}: {many}, for {read_by}; a number of slots is missing, so the launcher chooses it")
        return 0
    say(f"{file}: {many} with {hosts.slots} slots, for {read_by}")
    for entry, ranks in hosts.ranks():
        say(f"  {entry.host}  {f'rank {ranks[0]}' if len(ranks) == 1 else f'ranks {ranks[0]}-{ranks[-1]}'}")
    return 0


@app.command
def convert(file: Path, *, to: Form, output: Path | None = None) -> int:
    """Write a host file in the form of another MPI, or with the line ends of Unix, with its comments.

    Args:
        file: The host file.
        to: The MPI that is to read it.
        output: Where to write; by default standard output.
    """
    from mpitrain.launching import hostfile

    text = hostfile.read(file, windows=True).text(to)
    if output is None:
        say(text.rstrip("\n"))
    else:
        _write(output, text)
    return 0


@app.command
def from_tf1(
    arguments: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)] = None,
    *,
    ps_hosts: Annotated[str, Parameter(name="--ps-hosts")],
    worker_hosts: str,
    issync: Literal["0", "1"] = "0",
    to: Form = "openmpi",
    output: Path = Path("hosts"),
) -> int:
    """Write the host file of a TensorFlow 1 parameter-server job, and print the command that replaces it.

    Args:
        arguments: Options of the training, --train-steps 10000, for the command.
        ps_hosts: As it was given there, a:2222,b:2222.
        worker_hosts: As it was given there, c:2222,d:2222.
        issync: As it was given there: 1 becomes ps-sync, 0 ps-async.
        to: The MPI that is to read the host file.
        output: The host file to write.
    """
    import sys

    from mpitrain.launching.command import Launcher, Start, build
    from mpitrain.launching.tf1 import Job

    job = Job.of(ps_hosts, worker_hosts)
    mode = "ps-sync" if issync == "1" else "ps-async"
    options = ["--mode", mode, "--servers", str(len(job.servers)), *(arguments or [])]
    _write(output, job.hosts.text(to))
    launcher = Launcher("mpirun" if to == "openmpi" else "mpiexec", to)
    say(str(build(Start(launcher, len(job.ranks), options, sys.executable, output, by_node=job.by_node), {}, False)))
    if job.moved:
        say(f"mpitrain: ranks fill the hosts of the file from the top, which puts {job.moved}", to_errors=True)
    return 0


def _write(path: Path, text: str) -> None:
    from mpitrain.errors import InputError

    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f"--output {path} cannot be written ({error.strerror}): name another file") from None
