"""The directory that a run writes to: a new one, or that of the run that goes on. Called on the keeper alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mpitrain.checkpoints.find import AUTO, Found, checkpoints_of, find, run_of
from mpitrain.checkpoints.lock import RunLock
from mpitrain.config import RunConfig
from mpitrain.errors import InputError
from mpitrain.reporting.comparison import COMPARISON
from mpitrain.reporting.files import writing
from mpitrain.reporting.history import HISTORY, HistoryRecord, read_history, write_history
from mpitrain.reporting.rundir import check_empty, create_run_directory, try_to_write
from mpitrain.reporting.summary import SUMMARY


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


def open_run_directory(config: RunConfig, told: Callable[[str], None]) -> RunDirectory:
    """Make a run directory, or take one over at the checkpoint that is asked for.

    Args:
        config: says which.
        told: hears what a person should know.

    Raises:
        InputError: it cannot be written, is in use, holds a run that is not to be resumed, or there is no such
            checkpoint.
    """
    with ExitStack() as undo:
        if config.resume is None:
            opened = RunDirectory(*_made(config.run_dir, config.mode, config.model, undo))
            undo.pop_all()
            return opened
        path = run_of(config.resume, config.run_dir)
        source = path if config.resume == AUTO else run_of(config.resume, None)
        elsewhere = not (source.exists() and path.exists() and source.samefile(path))
        if elsewhere and config.resume != AUTO:
            found = find(config.resume, config.run_dir, told)
            _, lock = _made(path, config.mode, config.model, undo)
        else:
            lock = _taken_over(path, undo)
            found = find(config.resume, config.run_dir, told)
            if found is None:
                told(f"there is no checkpoint in {path}: the run starts from the beginning")
        history = _cut_history(source, path, 0 if found is None else found.manifest.step)
        checkpoints = checkpoints_of(path)
        with writing(checkpoints.path):
            checkpoints.clean()
            checkpoints.go_back_to(0 if found is None else found.manifest.step)
            (path / SUMMARY).unlink(missing_ok=True)
        undo.pop_all()
    return RunDirectory(path, lock, found, history)


def open_comparison_directory(config: RunConfig, told: Callable[[str], None]) -> RunDirectory:
    """Make the directory of a comparison, or take one over.

    Args:
        config: what the runs have in common; ``resume`` is ``auto``, or the directory.
        told: hears what a person should know.

    Raises:
        InputError: it cannot be written, is in use, or holds something else.
    """
    with ExitStack() as undo:
        if config.resume is None:
            path, lock = _made(config.run_dir, "compare", config.model, undo)
        else:
            path = run_of(config.resume, config.run_dir) if config.resume == AUTO else Path(config.resume)
            there = (path / COMPARISON).exists()
            if not there and config.resume != AUTO:
                raise InputError(f"{path} holds no comparison to go on with: name one, or start without --resume")
            lock = _taken_over(path, undo)
            # Without a history it is that of a comparison which did not come to its first run.
            if there or not (path / HISTORY).exists():
                with writing(path):
                    (path / SUMMARY).unlink(missing_ok=True)
            if not there:
                check_empty(path)
            told(
                f"going on with the comparison in {path}"
                if there
                else f"there is no comparison in {path}: it starts from the beginning"
            )
        undo.pop_all()
    return RunDirectory(path, lock)


def _made(given: str | Path | None, label: str, model: str, undo: ExitStack) -> tuple[Path, RunLock]:
    path = create_run_directory(given, label, model)
    lock = _locked(path, undo)
    check_empty(path)
    return path, lock


def _taken_over(path: Path, undo: ExitStack) -> RunLock:
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    lock = _locked(path, undo)
    try_to_write(path)
    return lock


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
