"""Which checkpoints there are, which is resumed from, and what is left of those that failed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpitrain.checkpoints import lock, slices
from mpitrain.checkpoints.find import find, run_of, stored_options
from mpitrain.checkpoints.folder import FOLDER, CheckpointFolder
from mpitrain.checkpoints.lock import LOCK, RunLock
from mpitrain.checkpoints.writing import write_file
from mpitrain.errors import InputError
from tests.checkpoints.making import make
from tests.support.mpi import environment


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with checkpoints of steps 3, 6 and 9."""
    path = tmp_path / "run"
    path.mkdir()
    for step in (3, 6, 9):
        make(path / FOLDER, step)
    return path


def damage(run: Path, step: int) -> None:
    file = CheckpointFolder(run / FOLDER).of(step) / "slice-0000.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (3, 6, 9, 12):
        make(tmp_path, step, keep=2)
    assert CheckpointFolder(tmp_path).steps() == [9, 12]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000009", "step-000000012"]


def test_the_newest_whole_one_is_found_and_damaged_ones_are_named(run: Path) -> None:
    told: list[str] = []
    found = find(str(run), None, told.append)
    assert found is not None
    assert (found.manifest.step, told) == (9, [])
    damage(run, 9)
    found = find("auto", str(run), told.append)
    assert found is not None
    assert found.manifest.step == 6
    assert len(told) == 1
    assert "step-000000009 is damaged" in told[0]
    assert told[0].endswith("falling back to step 6")
    with pytest.raises(InputError, match="step-000000009 is damaged"):
        find(str(found.path.with_name("step-000000009")), None, told.append)


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_anew_in_silence(run: Path) -> None:
    for step in (3, 6, 9):
        damage(run, step)
    for resume, run_dir in (("auto", str(run)), (str(run), None)):
        with pytest.raises(InputError, match=r"there is no whole checkpoint in .*step-000000009.*step-000000003"):
            find(resume, run_dir, print)


def test_a_run_without_checkpoints(tmp_path: Path) -> None:
    assert find("auto", str(tmp_path / "new"), print) is None
    with pytest.raises(InputError, match="there is no whole checkpoint in"):
        find(str(tmp_path), None, print)
    with pytest.raises(InputError, match="--resume auto goes on with the run in --run-dir, which is not given"):
        find("auto", None, print)


def test_which_run_a_checkpoint_belongs_to(run: Path) -> None:
    checkpoint = run / FOLDER / "step-000000006"
    assert run_of(str(checkpoint), None) == run
    assert run_of(str(run), None) == run
    assert run_of(str(run), "elsewhere") == Path("elsewhere")
    assert stored_options(str(checkpoint), None) == stored_options("auto", str(run)) == {"seed": 0}
    assert stored_options("auto", str(run / "nothing")) == {}


def test_going_back_sets_later_ones_aside_until_the_next_is_whole(run: Path) -> None:
    folder = CheckpointFolder(run / FOLDER)
    folder.go_back_to(6)
    assert folder.steps() == [3, 6]
    assert (folder.path / "step-000000009.aside").exists()
    make(folder.path, 9)
    assert folder.steps() == [3, 6, 9]
    assert not (folder.path / "step-000000009.aside").exists()


def test_what_was_never_finished_is_no_checkpoint_and_is_cleaned_up(run: Path) -> None:
    folder = CheckpointFolder(run / FOLDER)
    (folder.begin(12) / "slice-0000.safetensors").write_bytes(b"half")
    (folder.path / "step-000000003").rename(folder.path / "step-000000003.old")
    assert folder.steps() == [6, 9]
    folder.clean()
    assert sorted(path.name for path in folder.path.iterdir()) == ["step-000000006", "step-000000009"]


def test_a_full_disk_is_a_reason_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.fdatasync

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    taken = []

    def pieces() -> object:
        for _ in range(3):
            taken.append(1)
            yield np.zeros(100, np.uint8)

    monkeypatch.setattr(slices, "PIECE", 100)
    monkeypatch.setattr(slices.os, "fdatasync", full)
    written = write_file(tmp_path / "file", pieces())  # type: ignore[arg-type]
    assert (written.stored, written.reason) == (None, "No space left on device")
    assert len(taken) == 3, "who sends is not left alone"
    monkeypatch.setattr(slices.os, "fdatasync", plain)
    assert write_file(tmp_path / "gone" / "file", []).reason == "No such file or directory"


HOLD = "import sys; from pathlib import Path; from mpitrain.checkpoints.lock import RunLock; "
HOLD += "RunLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"


@pytest.mark.parametrize("able", [True, False])
def test_one_job_at_a_time(tmp_path: Path, able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not able:

        def unable(*_: object) -> None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(lock.fcntl, "flock", unable)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=rf"in use by process {one.pid} on {os.uname().nodename}: wait for its"):
            RunLock(tmp_path)
        one.kill()
        one.wait()
    mine = RunLock(tmp_path)
    mine.release()
    mine.release()
    assert not (tmp_path / LOCK).exists()
