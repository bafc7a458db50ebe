"""``doctor``: what would keep a run from going well, here or on each host of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def doctor(
    *,
    run_dir: Path = Path("runs"),
    dataset: str = "mnist",
    data_dir: Path | None = None,
    deadline: float = 10.0,
    start_timeout: float = 60.0,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Check this machine; under mpirun or srun, every host of the job, and the network between them.

    Args:
        run_dir: Where a run would write.
        dataset: What a run would read.
        data_dir: Folder with the data.
        deadline: Seconds for the network between two hosts to answer.
        start_timeout: Seconds for MPI to start.
        json_output: Print JSON instead of a table.
    """
    from mpitrain.cluster.hooks import install_hooks
    from mpitrain.cluster.job import start_mpi, stop_mpi
    from mpitrain.cluster.launcher import abort_start, read_launch, speaks_first
    from mpitrain.cluster.leaving import leave
    from mpitrain.cluster.mpi_library import Library
    from mpitrain.doctor.examine import examine
    from mpitrain.doctor.facts import look
    from mpitrain.doctor.findings import Mark, judge
    from mpitrain.doctor.report import as_json, table
    from mpitrain.errors import HostError, InputError
    from mpitrain.reporting.stream import say

    install_hooks()
    launch = read_launch()
    library = Library.loaded()
    mine = look(launch, library, dataset, data_dir)
    try:
        world = start_mpi(start_timeout, start_timeout)
    except InputError as wrong:
        if speaks_first(launch, wrong):
            findings = judge([mine], [], [str(wrong)])
            say(as_json([mine], findings, []) if json_output else table([mine], findings))
            if isinstance(wrong, HostError):
                abort_start(launch, 1)
        return 1
    found = examine(world, mine, run_dir, deadline, "check the firewall and routes between them")
    findings = judge(found.facts, found.wires)
    if world.rank == 0:
        say(as_json(found.facts, findings, found.wires) if json_output else table(found.facts, findings))
    code = int(any(finding.mark is Mark.WRONG for finding in findings))
    if any(wire.error for wire in found.wires):
        # Messages that never arrived are still under way: MPI could not end.
        leave(code, launch)
    stop_mpi()
    return code


doctor.starts_mpi = True  # type: ignore[attr-defined]
