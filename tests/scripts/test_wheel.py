from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.mpi import ROOT, environment, mpirun, run


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the tree, built from a copy, so that no earlier build's files get in."""
    folder = tmp_path_factory.mktemp("build")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "mpitrain", folder / "mpitrain", ignore=shutil.ignore_patterns("__pycache__"))
    run([sys.executable, "-m", "build", "--wheel", str(folder)], 200, os.environ).check()
    (path,) = (folder / "dist").glob("*.whl")
    return path


def test_holds_what_is_no_code(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tree = [path for path in (ROOT / "mpitrain").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert "mpitrain/py.typed" in names
    assert {str(path.relative_to(ROOT)) for path in tree} == {name for name in names if name.startswith("mpitrain/")}


def test_trains_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = venv / "bin" / "python"
    run([str(python), "-m", "pip", "install", "--no-deps", "--no-index", str(wheel)], 120, os.environ).check()
    # All else is borrowed from this environment, behind the packages of the new one.
    site = sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)})
    Path(site, "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    apart = {k: v for k, v in environment().items() if k != "PYTHONPATH"}
    where = run([str(python), "-c", "import mpitrain; print(mpitrain.__file__)"], 60, apart, tmp_path).check().out
    assert where.startswith(str(venv))
    arguments = ["--model", "mlp", "--dataset", "mnist-sample", "--train-steps", "20", "--run-dir", "run"]
    run([mpirun(), "-np", "2", str(python), "-m", "mpitrain", *arguments], 120, apart, tmp_path).check()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["updates"], summary["workers"]) == (20, 2)
