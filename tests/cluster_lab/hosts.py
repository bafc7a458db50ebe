"""Hosts on one machine, for tests: Linux namespaces with a network, a host name, processes, /tmp and sshd of their own.

They share the rest of the file system, as the nodes of a cluster do, and the cores: `--bind-to none` is a must, since
each believes that it has them to itself. Two labs do not see each other. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.support.mpi import ROOT, Ended, environment, run

_INSIDE = Path(__file__).with_name("inside.sh")
_ADDRESS = "10.77.0.{}"
_SSH = """\
Host *
  User root
  IdentityFile {folder}/id
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  GlobalKnownHostsFile /dev/null
  LogLevel ERROR
  BatchMode yes
  ConnectTimeout 5
"""
_SSHD = """\
Port 22
HostKey {folder}/id
AuthorizedKeysFile {folder}/id.pub
PermitRootLogin yes
StrictModes no
UsePAM no
UseDNS no
PrintMotd no
PidFile none
MaxStartups 100
"""


class Lab:
    """Hosts that live as long as the ``with`` block, and end with this process in any case.

    Args:
        folder: an empty folder for keys and configuration, which all hosts see.
        names: host names.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self.names = folder, tuple(names)
        self._holders: list[subprocess.Popen[bytes]] = []
        self._pids: dict[str, int] = {}

    def __enter__(self) -> Lab:
        folder = self.folder
        _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "id"))
        (folder / "ssh_config").write_text(_SSH.format(folder=folder))
        (folder / "sshd_config").write_text(_SSHD.format(folder=folder))
        lines = [f"{self.address(name)} {name}" for name in self.names]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        try:
            switch = self._switch = self._hold("--net", "sleep", "infinity")
            _do(*_in(switch, "--net"), "ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0")
            _do(*_in(switch, "--net"), "ip", "link", "set", "br0", "up")
            for name in self.names:
                self._add(name, switch)
            for name in self.names:
                self._await_login(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A host's first process takes all others of that host with it.
        for holder in self._holders:
            holder.kill()
            holder.wait()

    def address(self, name: str) -> str:
        """The IPv4 address of a host."""
        return _ADDRESS.format(self.names.index(name) + 1)

    def on(
        self, name: str, command: Sequence[str], timeout: float = 60.0, extra: Mapping[str, str] | None = None
    ) -> Ended:
        """Run a command on a host, in the lab's folder."""
        return run(self._inside(name, command), timeout, _shell(name, extra))

    def start(self, name: str, command: Sequence[str], extra: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """The same without waiting for its end; the caller ends it."""
        pipe = subprocess.PIPE
        inside, shell = self._inside(name, command), _shell(name, extra)
        return subprocess.Popen(
            inside, env=shell, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    def cut(self, name: str) -> None:
        """From now on nothing reaches the host and nothing leaves it, as if it had lost its power."""
        self._forward(name, "0")

    def mend(self, name: str) -> None:
        """Undo :meth:`cut`."""
        self._forward(name, "3")

    def shape(self, rate: str) -> None:
        """Let every link carry ``rate`` at most in each direction, such as ``1gbit``."""
        shaping = ("root", "tbf", "rate", rate, "burst", "256kb", "limit", "256kb")
        for number, name in enumerate(self.names, 1):
            _do(*_in(self._pids[name], "--net"), "tc", "qdisc", "replace", "dev", "eth0", *shaping)
            _do(*_in(self._switch, "--net"), "tc", "qdisc", "replace", "dev", f"p{number}", *shaping)

    def processes(self, name: str) -> dict[int, str]:
        """The command lines of all processes on a host, its first one and its ssh servers left out."""
        first = self._pids[name]
        space, found = os.stat(f"/proc/{first}/ns/pid").st_ino, {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int(folder.name) != first and os.stat(folder / "ns" / "pid").st_ino == space:
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    text = b" ".join(words).decode(errors="replace").strip()
                    if text and not text.startswith("sshd:"):
                        found[int(folder.name)] = text
        return found

    def _forward(self, name: str, state: str) -> None:
        port = f"p{self.names.index(name) + 1}"
        _do(*_in(self._switch, "--net"), "bridge", "link", "set", "dev", port, "state", state)

    def _inside(self, name: str, command: Sequence[str]) -> list[str]:
        kinds = ("--net", "--uts", "--ipc", "--mount", "--pid", f"--wdns={self.folder}")
        return [*_in(self._pids[name], *kinds), *command]

    def _add(self, name: str, switch: int) -> None:
        kinds = ("--net", "--uts", "--ipc", "--mount", "--pid", "--mount-proc", "--propagation", "private")
        shared = {
            str(path) for path in (self.folder, ROOT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())
        }
        pid = self._pids[name] = self._hold(*kinds, "bash", str(_INSIDE), name, str(self.folder), *sorted(shared))
        port = f"p{len(self._pids)}"
        inside = _in(pid, "--net")
        _do("ip", "link", "add", "eth0", "netns", str(pid), "type", "veth", "peer", "name", port, "netns", str(switch))
        _do(*inside, "ip", "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        _do(*inside, "ip", "link", "set", "lo", "up")
        _do(*inside, "ip", "link", "set", "eth0", "up")
        _do(*_in(switch, "--net"), "ip", "link", "set", port, "master", "br0", "up")

    def _hold(self, *arguments: str) -> int:
        """Start the first process of new namespaces; its process id here."""
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", *arguments]
        holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self._holders.append(holder)
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        for _ in _until(20, f"{' '.join(command)} did not start"):
            if holder.poll() is not None:
                raise AssertionError(f"{' '.join(command)} ended with {holder.returncode}")
            if text := children.read_text().split():
                return int(text[0])
        raise AssertionError

    def _await_login(self, name: str) -> None:
        for _ in _until(20, f"no ssh login from {self.names[0]} on {name}"):
            if (self.folder / f"{name}.ready").exists() and self.on(self.names[0], ["ssh", name, "true"]).code == 0:
                return


def _shell(name: str, extra: Mapping[str, str] | None) -> dict[str, str]:
    return environment({"HOSTNAME": name, **(extra or {})})


def _until(seconds: float, complaint: str) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.05)
    raise AssertionError(complaint)


def _in(pid: int, *kinds: str) -> list[str]:
    return ["nsenter", "--target", str(pid), *kinds]


def _do(*command: str) -> None:
    run(command, 20, os.environ).check()
