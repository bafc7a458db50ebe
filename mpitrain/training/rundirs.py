"""The directory that a run writes to: a new one, or that of the run that goes on. Called on the keeper alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mpitrain.checkpoints.find import AUTO, Found, checkpoints_of, find, run_of
from mpitrain.checkpoints.lock import RunLock
from mpitrain.config import RunConfig
from mpitrain.reporting.files import writing
from mpitrain.reporting.history import HistoryRecord, read_history, write_history
from mpitrain.reporting.rundir import check_empty, create_run_directory, try_to_write

HISTORY = "history.jsonl"


@dataclass(frozen=True)
class RunDirectory:
    """A run directory that this process alone writes to.

    Args:
        path: of it.
        lock: on it.
        found: the checkpoint that the run goes on from.
        history: the records up to there.
    """

    path: Path
    lock: RunLock
    found: Found | None = None
    history: tuple[HistoryRecord, ...] = ()


def open_run_directory(config: RunConfig, label: str, told: Callable[[str], None]) -> RunDirectory:
    """Make a run directory, or take one over at the checkpoint that is asked for.

    Args:
        config: says which.
        label: stands for the mode in the name of a new directory.
        told: hears what a person should know.

    Raises:
        InputError: it cannot be written, is in use, holds a run that is not to be resumed, or there is no such
            checkpoint.
    """
    with ExitStack() as undo:
        if config.resume is None:
            path = create_run_directory(config.run_dir, label, config.model)
            lock = _locked(path, undo)
            check_empty(path)
            undo.pop_all()
            return RunDirectory(path, lock)
        path = run_of(config.resume, config.run_dir)
        source = path if config.resume == AUTO else run_of(config.resume, None)
        elsewhere = not (source.exists() and path.exists() and source.samefile(path))
        if elsewhere and config.resume != AUTO:
            found = find(config.resume, config.run_dir, told)
            create_run_directory(path, label, config.model)
            lock = _locked(path, undo)
            check_empty(path)
        else:
            with writing(path):
                path.mkdir(parents=True, exist_ok=True)
            lock = _locked(path, undo)
            try_to_write(path)
            found = find(config.resume, config.run_dir, told)
            if found is None:
                told(f"there is no checkpoint in {path}: the run starts from the beginning")
        history = _cut_history(source, path, 0 if found is None else found.manifest.step)
        checkpoints = checkpoints_of(path)
        with writing(checkpoints.path):
            checkpoints.clean()
            checkpoints.go_back_to(0 if found is None else found.manifest.step)
            (path / "summary.json").unlink(missing_ok=True)
        undo.pop_all()
    return RunDirectory(path, lock, found, history)


def _locked(path: Path, undo: ExitStack) -> RunLock:
    lock = RunLock(path)
    undo.callback(lock.release)
    return lock


def _cut_history(source: Path, path: Path, step: int) -> tuple[HistoryRecord, ...]:
    """The records up to ``step``; what ``path`` has of later ones is cut off."""
    records = read_history(source / HISTORY).records if (source / HISTORY).exists() else []
    kept = tuple(record for record in records if record.step <= step)
    write_history(path, kept)
    return kept
