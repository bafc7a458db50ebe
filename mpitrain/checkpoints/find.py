"""Which checkpoint ``--resume`` means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mpitrain.checkpoints.folder import FOLDER, CheckpointFolder, is_checkpoint
from mpitrain.checkpoints.manifest import Manifest, read_manifest
from mpitrain.checkpoints.reader import check
from mpitrain.errors import InputError

AUTO = "auto"


class Found(NamedTuple):
    """A checkpoint, and what it says."""

    path: Path
    manifest: Manifest


def run_of(resume: str, run_dir: str | None) -> Path:
    """The run directory that a resumed run writes to.

    Args:
        resume: ``auto``, a run directory, or a checkpoint's folder.
        run_dir: as given; None for that of the checkpoint.

    Raises:
        InputError: where that does not follow from these.
    """
    if run_dir is not None:
        return Path(run_dir)
    if resume == AUTO:
        raise InputError("--resume auto goes on with the run in --run-dir, which is not given: name it")
    path = Path(resume).absolute()
    return path.parent.parent if is_checkpoint(path) else path


def checkpoints_of(path: Path) -> CheckpointFolder:
    """Those of a run directory."""
    return CheckpointFolder(path / FOLDER)


def find(resume: str, run_dir: str | None, told: Callable[[str], None]) -> Found | None:
    """The newest whole checkpoint of a run, or the one that is named; checked to the last byte.

    Args:
        resume: ``auto``, a run directory, or a checkpoint's folder.
        run_dir: where ``auto`` looks.
        told: hears of newer checkpoints that are not whole.

    Returns:
        None where ``auto`` finds none.

    Raises:
        InputError: the one that is named is missing or damaged, or a run that is named has none.
    """
    path = run_of(resume, run_dir) if resume == AUTO else Path(resume)
    if is_checkpoint(path):
        return Found(path, check(path))
    damaged: list[str] = []
    newest = checkpoints_of(path).newest_whole(damaged.append)
    if newest is None and (damaged or resume != AUTO):
        also = f" ({'; '.join(damaged)})" if damaged else ""
        raise InputError(f"there is no whole checkpoint in {path}{also}: name another run, or start without --resume")
    if newest is None:
        return None
    for sentence in damaged:
        told(f"{sentence}; falling back to step {newest[1].step}")
    return Found(*newest)


def stored_options(resume: str, run_dir: str | None) -> dict[str, Any]:
    """The options of the run that is to be resumed, as its newest readable manifest has them; empty without one."""
    try:
        path = run_of(resume, run_dir) if resume == AUTO else Path(resume)
        if is_checkpoint(path):
            return dict(read_manifest(path).config)
    except InputError:
        return {}
    folder = checkpoints_of(path)
    for step in reversed(folder.steps()):
        try:
            return dict(read_manifest(folder.of(step)).config)
        except InputError:
            continue
    return {}
