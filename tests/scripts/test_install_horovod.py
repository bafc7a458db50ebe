"""What scripts/install-horovod.sh says where it cannot go on; tests/exchange/test_horovod.py uses what it builds."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.mpi import ROOT, Ended, run

SCRIPT = ROOT / "scripts" / "install-horovod.sh"
TOOLS = ["bash", "cat", "chmod", "dirname", "flock", "mktemp", "nice", "nproc", "readlink", "rm", "tail", "timeout"]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An environment of its own that finds what is installed in this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    site = next((tmp_path / "env" / "lib").glob("python*")) / "site-packages"
    borrowed = {path for path in sys.path if Path(path).name == "site-packages"} | {sysconfig.get_path("purelib")}
    (site / "borrowed.pth").write_text("\n".join(borrowed))
    return tmp_path / "env" / "bin" / "python"


def install(python: Path, *programs: str) -> Ended:
    """Run the script where nothing is on PATH but what it needs itself and ``programs``, and no network."""
    folder = python.parents[2] / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (folder / tool).symlink_to(found)
    for program in programs:
        (folder / program).write_text("#!/bin/sh\n")
        (folder / program).chmod(0o755)
    variables = {"PATH": str(folder), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    return run([str(SCRIPT), str(python)], 60, variables)


def sentence(ended: Ended) -> str:
    assert (ended.code, ended.out) == (1, ""), ended.err
    return ended.err.splitlines()[-1]


def test_what_is_no_environment_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "python") in sentence(run([str(SCRIPT), str(tmp_path / "python")], 60, {}))


def test_no_tensorflow(python: Path) -> None:
    next(python.parents[1].glob("lib/*/site-packages/borrowed.pth")).unlink()
    ended = install(python, "mpicxx", "mpirun", "g++", "make")
    assert "there is no TensorFlow" in sentence(ended)
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("programs", "told"),
    [
        (("g++", "make", "mpirun"), "there is no mpicxx on PATH"),
        (("mpicxx", "mpirun", "g++"), "apt-get install make"),
        (("mpicxx", "mpirun"), "apt-get install g++ make"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_what_is_missing_is_one_sentence(python: Path, programs: tuple[str, ...], told: str) -> None:
    ended = install(python, *programs)
    assert told in sentence(ended)
    assert ended.err.count("\n") == 1


def test_no_network(python: Path) -> None:
    ended = install(python, "mpicxx", "mpirun", "g++", "make", "cmake")
    assert "is there a network?" in sentence(ended)
    assert sentence(ended).endswith(str(python.parents[1] / "horovod.log"))


@pytest.mark.parametrize(
    ("tensorflow", "flags"),
    [
        ("2.18.1", ""),
        ("2.19.0", "-UTENSORFLOW_VERSION -DTENSORFLOW_VERSION=__LINE__%23*2019000000"),
        ("2.21.0rc1", "-UTENSORFLOW_VERSION -DTENSORFLOW_VERSION=__LINE__%23*2021000000"),
        ("3.0.0", "-UTENSORFLOW_VERSION -DTENSORFLOW_VERSION=__LINE__%23*3000000000"),
    ],
)
def test_the_flag_follows_the_version(tensorflow: str, flags: str) -> None:
    program = f'eval "$(sed -n "/^flags_for/,/^}}/p" {SCRIPT})"; flags_for {tensorflow}'
    assert run(["/bin/bash", "-c", program], 10, {"PATH": "/usr/bin:/bin"}).check().out == flags
