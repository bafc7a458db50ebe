from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.mpi import ROOT, run

SCRIPTS = sorted(
    [ROOT / ".ci" / "run", *(ROOT / "scripts").rglob("*.sh"), *(ROOT / "scripts").rglob("*.sbatch")]
    + list((ROOT / "tests").rglob("*.sh"))
)
SOURCED = {"mpi-env.sh", "venv.sh", "common.sh"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path: Path) -> None:
    shellcheck = str(Path(sys.executable).with_name("shellcheck"))
    run([shellcheck, "--external-sources", str(path)], 60, os.environ, ROOT).check()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_what_is_started_has_its_run_bit_and_what_is_sourced_has_none(path: Path) -> None:
    assert os.access(path, os.X_OK) == (path.name not in SOURCED)
