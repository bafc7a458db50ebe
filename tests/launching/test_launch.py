"""``mpitrain launch`` up to the command that it runs, and what it does with signals and exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpitrain.__main__ import main
from mpitrain.cli.launch import split
from mpitrain.cluster.mpi_library import Library
from mpitrain.cluster.networks import interfaces
from mpitrain.errors import InputError
from mpitrain.launching import networks
from mpitrain.launching.command import Launcher, Start, build
from mpitrain.launching.find import find_launcher, identify
from mpitrain.launching.plan import place
from mpitrain.launching.preflight import check_alike, check_room
from mpitrain.launching.probe import Probe, probe
from tests.support.mpi import environment, run

MIB = 1 << 20
HERE = Probe("a", {"mpitrain": "1", "keras": "3"}, "MPICH 5.0.2", "", 2, 64 * MIB, 12 * MIB, {})
OPEN_MPI, MPICH = Library("Open MPI v5.0.11, package: x"), Library("MPICH Version:      5.0.2")


def test_options_of_its_own_are_parted_from_the_run_s() -> None:
    tokens = ["-np", "3", "--model", "mlp", "--oversubscribe", "--network=eth0", "--", "--dry-run"]
    assert split(tokens) == ["--np", "3", "--oversubscribe", "--network", "eth0", "--", "--model", "mlp", "--dry-run"]


def test_dry_run_prints_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "-np", "3", "--dry-run", "--model", "mlp", "--train_steps", "5"]) == 0
    out = capsys.readouterr().out
    assert " --bind-to none " in out
    assert out.endswith(f" -np 3 {sys.executable} -m mpitrain --model mlp --train-steps 5\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--mdoel", "x"], "did you mean --model?"),
        (["--batch-size", "0"], "--batch-size is 0"),
        (["data", "fetch"], "data needs no mpirun"),
        (["-np", "0"], "-np is 0"),
        (["--hostfile", "missing"], "missing cannot be read"),
        (["--network", "nonsense"], "--network nonsense"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--dry-run", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line


def test_a_file_in_the_other_mpi_s_form_is_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hosts"
    path.write_text("localhost:2\n")
    assert main(["launch", "--dry-run", "--hostfile", str(path)]) == 0
    convert, command = capsys.readouterr().out.splitlines()
    assert convert.endswith(f"-m mpitrain hostfile convert {path} --to openmpi --output {path}.openmpi")
    assert f"--hostfile {path}.openmpi -np 2 " in command
    path.write_text("localhost slots=2\n")
    assert main(["launch", "--dry-run", "--hostfile", str(path), "-np", "3"]) == 2
    assert f"{path} has slots for 2 ranks but -np is 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("slots", "ranks", "counts"), [([2, 2], 3, [2, 1]), ([1, 1], 5, [3, 2]), ([4, 4], 2, [2, 0]), ([2, 2], 4, [2, 2])]
)
def test_ranks_fill_the_hosts(slots: list[int], ranks: int, counts: list[int]) -> None:
    assert place(slots, ranks) == counts


def test_the_network_that_all_hosts_share() -> None:
    def on(number: int, **interfaces: str) -> Probe:
        table = {n: (a, "255.255.255.0") for n, a in interfaces.items()}
        return Probe(f"h{number}", {}, "", "", 2, 0, 0, table)

    one = [on(n, eth0=f"10.0.0.{n}") for n in (1, 2)]
    bridged = [on(n, docker0="172.17.0.1", eth0=f"10.0.0.{n}") for n in (1, 2)]
    two = [on(n, ib0=f"10.1.0.{n}", eth0=f"10.0.0.{n}") for n in (1, 2)]
    known = [frozenset({f"10.0.0.{n}"}) for n in (1, 2)]
    assert networks.choose(one, known, None) is None
    assert networks.choose(bridged, known, None) == ("eth0", "10.0.0.0/24")
    assert networks.choose(two, known, None) == ("eth0", "10.0.0.0/24")
    assert networks.choose(two, known, "ib0") == ("ib0", "10.1.0.0/24")
    assert networks.choose(two, known, "10.1.0.0/24") == ("ib0", "10.1.0.0/24")
    with pytest.raises(InputError, match=r"--network 10.9.0.0/24 is not on h1, whose networks are: ib0 10.1.0.0/24"):
        networks.choose(two, known, "10.9.0.0/24")


def test_hosts_that_differ_or_are_too_small_are_named() -> None:
    def other(**different: object) -> Probe:
        return Probe(**{**HERE.__dict__, "host": "b", **different})  # type: ignore[arg-type]

    check_alike(["b"], [other()], HERE)
    for probe_of, reason in (
        (other(versions={"mpitrain": "2", "keras": "3"}), "b has mpitrain 2 instead of 1"),
        (other(mpi="Open MPI 5"), "b has Open MPI 5 but a MPICH 5.0.2"),
        (other(fault="mpi4py finds no MPI"), "b: mpi4py finds no MPI"),
    ):
        with pytest.raises(InputError, match=reason):
            check_alike(["b"], [probe_of], HERE)
    check_room(["b"], [other()], [2], False)
    with pytest.raises(InputError, match="b is to get 3 ranks but has 2 cores"):
        check_room(["b"], [other()], [3], False)
    with pytest.raises(InputError, match=r"/dev/shm on b has 64 MiB free but MPICH .* needs 96 MiB there for 16"):
        check_room(["b"], [other()], [16], True)


def test_what_a_host_says_of_itself() -> None:
    told = probe()
    assert told.host == os.uname().nodename
    assert told.mpi
    assert told.versions["tensorflow"]
    assert {name: address for name, (address, _) in told.networks.items()} == {
        name: str(address.ip) for name, address in interfaces().items()
    }
    assert not any(address.startswith("127.") for address, _ in told.networks.values())


def test_each_mpi_gets_what_it_needs() -> None:
    def words(form: str, version: int, **more: object) -> str:
        start = Start(Launcher("mpirun", form, (version,)), 3, [], "/py", remote=True, crowded=True, **more)  # type: ignore[arg-type]
        return str(build(start, {"PYTHONPATH": "/p", "MPITRAIN_SEED": "1", "HOME": "/"}, root=True))

    network = ("eth0", "10.0.0.0/24")
    new, old, mpich = (words(*mpi, network=network) for mpi in (("openmpi", 5), ("openmpi", 4), ("mpich", 5)))
    for text in (new, old):
        assert "--allow-run-as-root --bind-to none" in text
        assert "--mca btl_tcp_if_include 10.0.0.0/24" in text
        assert "-x MPITRAIN_SEED -x PYTHONPATH" in text
    assert "--map-by :OVERSUBSCRIBE" in new
    assert "--prtemca prte_if_include 10.0.0.0/24" in new
    assert "--oversubscribe" in old
    assert "--mca oob_tcp_if_include 10.0.0.0/24 --mca plm_rsh_agent 'ssh -o ServerAliveInterval=5" in old
    assert mpich.startswith("UCX_NET_DEVICES=eth0 FI_TCP_IFACE=eth0 HYDRA_LAUNCHER_EXTRA_ARGS='-o ServerAlive")
    assert "-iface eth0 -np 3 /py -m mpitrain" in mpich


SAYS = {
    "mpirun (Open MPI) 5.0.11": ("openmpi", (5, 0, 11)),
    "mpirun (Open MPI) 4.1.4": ("openmpi", (4, 1, 4)),
    "HYDRA build details:\\n    Version:                                 5.0.2": ("mpich", (5, 0, 2)),
    "Intel(R) MPI Library for Linux* OS, Version 2021.12 Build 1": ("mpich", (2021, 12)),
}


@pytest.mark.parametrize("says", SAYS)
def test_launchers_are_known_by_what_they_say(says: str, tmp_path: Path) -> None:
    found = identify(_script(tmp_path, f"printf '{says}\\n'"))
    assert found is not None
    assert (found.form, found.version) == SAYS[says]


def test_the_launcher_of_the_library_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none" / "python"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "none"))
    _script(tmp_path / "old", "echo 'mpirun (Open MPI) 4.1.4'")
    _script(tmp_path / "new", "echo 'mpirun (Open MPI) 5.0.1'")
    path = f"{tmp_path}/old:{tmp_path}/new"
    assert find_launcher(OPEN_MPI, path).path == f"{tmp_path}/new/mpirun"
    beside = Library(OPEN_MPI.text, f"{tmp_path}/x/lib/libmpi.so.40")
    _script(tmp_path / "x" / "bin", "echo 'mpirun (Open MPI) 5.0.11'")
    assert find_launcher(beside, path).version == (5, 0, 11)
    with pytest.raises(InputError, match=r"no mpirun of MPICH 5.0.2, which .* loads"):
        find_launcher(MPICH, path)
    with pytest.raises(InputError, match=r"old/mpirun is Open MPI 4.1.4"):
        find_launcher(OPEN_MPI, f"{tmp_path}/old")


RUN = "import sys; from mpitrain.launching.running import run; from mpitrain.launching.command import Command; "
RUN += "sys.exit(run(Command(sys.argv[1:])))"
HEARS = "trap 'echo asked' USR1; trap 'echo ended; exit 9' TERM; echo ready; while :; do sleep 0.1; done"


def test_the_exit_code_is_the_run_s() -> None:
    for command, code in ((["sh", "-c", "exit 75"], 75), (["sh", "-c", "kill -KILL $$"], 137)):
        assert run([sys.executable, "-c", RUN, *command], 30, environment()).code == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends(number: signal.Signals) -> None:
    command = [sys.executable, "-c", RUN, "sh", "-c", HEARS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(), stdout=pipe, stderr=pipe, text=True) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
            time.sleep(0.3)
            job.send_signal(number)
            assert job.stdout.readline() == "asked\n"
            job.send_signal(number)
            assert job.stdout.readline() == "ended\n"
            assert job.wait(10) == 9
            assert f"{number.name}: the run is asked to end" in job.stderr.read()  # type: ignore[union-attr]
        finally:
            job.kill()


def _script(folder: Path, line: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)
