from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.__main__ import main
from mpitrain.errors import InputError
from mpitrain.launching.hostfile import FORMS, MPICH, OPENMPI, parse, read
from mpitrain.launching.tf1 import Job
from tests.support.mpi import ROOT

WRONG = {
    # text: line, column, part of the sentence
    "h1 slots=0": (1, 10, "'0' is not a number of ranks"),
    "h1:0": (1, 4, "'0' is not a number of ranks"),
    "h1 slots=2x": (1, 10, "'2x'"),
    "h1 slots=-1": (1, 10, "'-1'"),
    "h1 slots=99999999999": (1, 10, "whole number"),
    "h1 slots": (1, 9, "no =N"),
    "h1  slots=": (1, 11, "missing"),
    "h1:": (1, 4, "missing"),
    "h1:1:2": (1, 4, "'1:2'"),
    ":2": (1, 1, "name is missing"),
    "h1 slot=2": (1, 4, "did you mean slots?"),
    "h1 port=22": (1, 4, "'port='"),
    "h1 slots=2 max=3": (1, 12, "'max=3'"),
    "h1 h2": (1, 4, "'h2'"),
    "h[1-3]": (1, 2, "a line of its own"),
    "h1,h2": (1, 3, "a line of its own"),
    "-h": (1, 1, "'-'"),
    "h1:2\n h1:3": (2, 2, "on line 1 already"),
    "h1:2\nh2 slots=3": (2, 4, "Open MPI's form"),
    "h1 slots=2\n\n# c\nh2:3": (4, 3, "MPICH's form"),
    "h1:2 # c": (1, 6, "comment"),
    "h1\nh2\r\n": (2, 3, "CRLF"),
    "\ufeffh1": (1, 1, "byte order mark"),
    "# nothing\n\n": (1, 1, "no host"),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_told_with_its_place(text: str) -> None:
    line, column, reason = WRONG[text]
    with pytest.raises(InputError) as told:
        parse(text, "hosts")
    assert str(told.value).startswith(f"hosts:{line}:{column}: ")
    assert reason in str(told.value)


def test_a_form_that_is_asked_for_is_required(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("h:2")
    with pytest.raises(InputError, match=r"hosts:1:2: `h:2` is MPICH's form, not Open MPI's: write"):
        read(tmp_path / "hosts", OPENMPI)


NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9]{0,8}(\.[a-z]{2,3})?", fullmatch=True), min_size=1, unique=True)


@given(NAMES, st.data(), st.sampled_from(FORMS), st.sampled_from(FORMS))
def test_converting_keeps_hosts_slots_and_comments(names: list[str], data: st.DataObject, first: str, to: str) -> None:
    counts = data.draw(st.lists(st.integers(1, 64), min_size=len(names), max_size=len(names)))
    sign = " slots=" if first == OPENMPI else ":"
    lines = [f"# {name}\n{name}{sign}{count}" for name, count in zip(names, counts, strict=True)]
    once = parse("\n".join([*lines, "# the end", ""]))
    again = parse(once.text(to))
    assert (again.form, once.form) == (to, first)
    assert [(e.host, e.slots, e.comments) for e in again.entries] == [
        (name, count, (f"# {name}",)) for name, count in zip(names, counts, strict=True)
    ]
    assert again.ending == ("# the end",)
    assert again.text(first) == once.text(first)


def test_what_open_mpi_reads_loosely_is_written_strictly() -> None:
    loose = parse("  h1 slots = 2  # big\nh2\tslots=1\n")
    assert loose.text(MPICH) == "# big\nh1:2\nh2:1\n"


def test_a_number_that_only_the_launcher_knows_is_not_guessed() -> None:
    with pytest.raises(InputError, match=r"hosts:2:1: h2 has no number of slots"):
        parse("h1 slots=1\nh2\n").text(MPICH)
    assert parse("h1:2\nh2\n").text(OPENMPI) == "h1 slots=2\nh2 slots=1\n"


def test_windows_line_ends_are_converted(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(b"h1 slots=2\r\nh2 slots=1\r\n")
    assert main(["hostfile", "convert", str(path), "--to", "openmpi", "--output", str(path)]) == 0
    assert path.read_bytes() == b"h1 slots=2\nh2 slots=1\n"


def test_the_examples_are_sound() -> None:
    for path in (ROOT / "hostfiles").iterdir():
        assert path.suffix == ".md" or read(path).form == path.suffix[1:]


def test_check_tells_which_ranks_a_host_gets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hosts"
    path.write_text("localhost slots=1\n127.0.0.2 slots=1\n")
    assert main(["hostfile", "check", str(path)]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["localhost", "rank", "0"],
        ["127.0.0.2", "rank", "1"],
    ]


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        (f"localhost slots={len(os.sched_getaffinity(0)) + 1}", "1:1", "cores"),
        ("localhost\nno-such-host.invalid", "2:1", "does not resolve"),
        ("127.0.0.1\nlocalhost", "2:1", "the same host as 127.0.0.1"),
    ],
)
def test_check_looks_at_the_hosts(
    text: str, place: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    assert main(["hostfile", "check", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mpitrain: error: {path}:{place}: ")
    assert reason in line


def test_more_slots_than_cores_can_be_accepted(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("localhost:1000\n")
    assert main(["hostfile", "check", str(path), "--oversubscribe"]) == 0


TF1 = {
    # servers, workers: the file, whether ranks are dealt, what moves
    ("a:1", "b:1,c:1"): ("a:1 b:1 c:1", False, ""),
    ("a:1", "a:2,b:1"): ("a:2 b:1", False, ""),
    ("a:1,b:1", "a:2,b:2"): ("a:2 b:2", True, ""),
    ("a,b", "c,d"): ("a:1 b:1 c:1 d:1", False, ""),
    ("a,b", "b,a"): ("a:2 b:2", False, "server 1 on a instead of b, worker 1 on b instead of a"),
}


@pytest.mark.parametrize("hosts", TF1)
def test_roles_of_a_tf1_job_keep_their_hosts(hosts: tuple[str, str]) -> None:
    job = Job.of(*hosts)
    file, by_node, moved = TF1[hosts]
    assert [f"{e.host}:{e.slots}" for e in job.hosts.entries] == file.split()
    assert (job.by_node, job.moved) == (by_node, moved)


def test_a_tf1_job_becomes_a_host_file_and_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "hosts"
    hosts = ["--ps_hosts", "a:2222,b:2222", "--worker_hosts", "c:2222,d:2222", "--issync=1"]
    assert main(["hostfile", "from-tf1", *hosts, "--output", str(output), "--train_steps", "500"]) == 0
    assert [(e.host, e.slots) for e in read(output, OPENMPI).entries] == [(host, 1) for host in "abcd"]
    command = capsys.readouterr().out
    assert command.startswith(f"mpirun --bind-to none --hostfile {output} -np 4 /")
    assert command.endswith(" -m mpitrain --mode ps-sync --servers 2 --train-steps 500\n")


@pytest.mark.parametrize(("text", "column"), [("a:2222,:1", 8), ("a b", 1), ("a:x", 1), ("", 1)])
def test_what_is_no_list_of_hosts_is_refused(text: str, column: int) -> None:
    with pytest.raises(InputError, match=f"--ps-hosts:{column}: "):
        Job.of(text, "c:1")
