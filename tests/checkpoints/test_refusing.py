"""Saves that fail while a run is under way: it goes on, older checkpoints stay whole, and all is told."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mpitrain.checkpoints.find import checkpoints_of
from mpitrain.checkpoints.reader import check
from mpitrain.data.fetch import ensure_mnist
from tests.checkpoints.refusing import ACCIDENTS, EVERY, MOUNTED, STEPS
from tests.support.mpi import launch

pytestmark = pytest.mark.root


class Told(NamedTuple):
    folder: Path
    err: str

    def saved(self, name: str) -> dict[str, Any]:
        saved: dict[str, Any] = json.loads((self.folder / f"{name}.saved").read_text())
        return saved

    def warnings(self, name: str) -> list[str]:
        return [line for line in self.err.splitlines() if "warning" in line and f"/{name}" in line]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp("refusing")
    shutil.copytree(ensure_mnist(report=print), folder / "data")
    try:
        yield Told(folder, launch(2, ["-m", "tests.checkpoints.refusing", str(folder)], 90).check().err)
    finally:
        for name in MOUNTED:
            subprocess.run(["umount", folder / name / "checkpoints"], check=False)


@pytest.mark.parametrize(
    ("name", "reason", "failed", "kept"),
    [
        ("full", "No space left on device", [24, 36], [12, 48]),
        ("read-only", "Read-only file system", [24, 36, 48], [12]),
        ("no checkpoints", "", [], [24, 36, 48]),
        ("no run", "No such file or directory", [24, 36, 48], []),
        ("no data", "", [], [24, 36, 48]),
    ],
)
def test_a_run_goes_on_and_says_what_is_not_saved(
    told: Told, name: str, reason: str, failed: list[int], kept: list[int]
) -> None:
    saved = told.saved(name)
    assert saved["failed"] == [{"step": step, "reason": reason} for step in failed]
    assert saved["checkpoints"] == STEPS // EVERY - len(failed)
    folder = checkpoints_of(told.folder / name)
    assert folder.steps() == kept
    assert [check(folder.of(step)).step for step in kept] == kept
    spoken = [line for line in told.warnings(name) if "could not be saved" in line]
    assert len(spoken) == len(failed)
    assert (told.folder / name / "model.keras").stat().st_size > 0


def test_a_run_directory_that_was_removed_is_made_anew_for_the_model(told: Told) -> None:
    assert [line for line in told.warnings("no run") if "made anew" in line]
    assert not [line for line in told.err.splitlines() if "error" in line or "Traceback" in line]
    assert set(ACCIDENTS) == {path.stem for path in told.folder.glob("*.saved")}
