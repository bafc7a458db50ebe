"""A real Slurm on the hosts of a lab: the controller on the first, a node daemon on each."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.cluster_lab.hosts import Lab
from tests.support.mpi import Ended

_CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={first}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=2
MailProg=/bin/true
"""
_ALIVE = re.compile("JobState=(PENDING|CONFIGURING|RUNNING|COMPLETING)")


class Slurm:
    """Slurm on all hosts of ``lab``; it ends with them.

    Args:
        lab: its hosts are up.
        cores: how many cores each node offers.
    """

    def __init__(self, lab: Lab, cores: int = 2) -> None:
        self.lab, self.first = lab, lab.names[0]
        folder = lab.folder
        # The hosts share the file system, so one munge serves them all.
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        (folder / "state").mkdir()
        nodes = [f"NodeName={name} NodeAddr={lab.address(name)} CPUs={cores}" for name in lab.names]
        partition = "PartitionName=lab Nodes=ALL Default=YES MaxTime=60 State=UP"
        head = _CONFIGURATION.format(folder=folder, first=self.first, address=lab.address(self.first))
        (folder / "slurm.conf").write_text(head + "\n".join([*nodes, partition, ""]))
        # The namespaces show no cgroup mount from which Slurm could tell the version.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        files = (f"--{kind}-file={folder}/munge.{kind}" for kind in ("key", "pid", "log", "seed"))
        self.run(["munged", "--force", f"--socket={folder}/munge.sock", *files]).check()
        self.run(["slurmctld", "-c"]).check()
        for name in lab.names:
            (folder / f"spool.{name}").mkdir()
            lab.on(name, ["slurmd", "-N", name, "-c"], extra=self._environment()).check()
        self._await("sinfo --noheader --states=idle --format=%D", str(len(lab.names)), 30)

    def run(self, command: Sequence[str], timeout: float = 60.0, extra: Mapping[str, str] | None = None) -> Ended:
        """Run a command of Slurm's, or any other, on the first host."""
        return self.lab.on(self.first, command, timeout, {**self._environment(), **(extra or {})})

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """The same without waiting for its end."""
        return self.lab.start(self.first, command, self._environment())

    def submit(self, arguments: Sequence[str], timeout: float = 120.0, extra: Mapping[str, str] | None = None) -> Ended:
        """``sbatch ARGUMENTS`` from the lab's folder; the exit code of the job and what it wrote, when it has ended."""
        return self.ended(self.queue(arguments, extra), timeout)

    def queue(self, arguments: Sequence[str], extra: Mapping[str, str] | None = None) -> str:
        """``sbatch ARGUMENTS``; the number of the job."""
        self._output.unlink(missing_ok=True)
        # --wait would ask for the job's state less and less often.
        return (
            self.run(["sbatch", "--parsable", f"--output={self._output}", *arguments], extra=extra).check().out.strip()
        )

    def again(self, job: str, since: Callable[[], object]) -> None:
        """Wait until a running job is queued again after ``since()``, and have it start without Slurm's two minutes."""
        since()
        end = time.monotonic() + 60
        while "JobState=PENDING" not in (state := self._state(job)):
            assert time.monotonic() < end, f"job {job} was not queued again: {state}\n{self._output.read_text()}"
            time.sleep(0.2)
        # In the same second a node would take the second start for the first, which it has just ended.
        time.sleep(1.5)
        self.run(["scontrol", "update", f"JobId={job}", "StartTime=now"]).check()

    def ended(self, job: str, timeout: float) -> Ended:
        """What :meth:`submit` gives, of a job that was queued last."""
        end = time.monotonic() + timeout
        while _ALIVE.search(state := self._state(job)):
            if time.monotonic() > end:
                self.run(["scancel", job])
                said = self._output.read_text()[-4000:]
                raise AssertionError(f"job {job} did not end in {timeout} s: {state}\n{said}")
            time.sleep(0.2)
        code = re.search(r"ExitCode=(\d+):(\d+)", state)
        assert code, state
        return Ended(int(code[1]) or 128 * (code[2] != "0") + int(code[2]), self._output.read_text(), state)

    @property
    def _output(self) -> Path:
        return self.lab.folder / "job.out"

    def _state(self, job: str) -> str:
        return self.run(["scontrol", "show", "job", job, "--oneliner"]).check().out

    def _environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.lab.folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}

    def _await(self, question: str, answer: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (said := self.run(question.split())).out.strip() != answer:
            assert time.monotonic() < end, f"{question}: {said.out}{said.err}"
            time.sleep(0.1)
