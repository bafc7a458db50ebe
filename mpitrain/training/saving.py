"""Saving a run at its cuts: each rank its own slice, in the background where that is small."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.checkpoints.folder import CheckpointFolder
from mpitrain.checkpoints.manifest import STATE, Manifest
from mpitrain.checkpoints.slices import Slice
from mpitrain.checkpoints.writing import BackgroundWriter, Written, reason_of, write_file
from mpitrain.cluster.mpi import MPI
from mpitrain.cluster.waiting import now, waiting
from mpitrain.cluster.world import World
from mpitrain.errors import InputError
from mpitrain.reporting.stream import say
from mpitrain.reporting.summary import FailedSave, Saved
from mpitrain.training import travelling
from mpitrain.training.holdings import Holdings, Kept

log = logging.getLogger("mpitrain")

_TAG = 7
_LOOK = 1e-3  # seconds between two looks at what has arrived
_OPERATION = "saving a checkpoint"


@dataclass(frozen=True)
class When:
    """When a run saves.

    Args:
        versions: at which.
        seconds: between two saves; None where ``versions`` alone count.
        at_end: whether the last version is saved even if nothing was saved before.
    """

    versions: frozenset[int] = frozenset()
    seconds: float | None = None
    at_end: bool = False


class Saver:
    """Saves a run; every rank makes one, and calls :meth:`save` and :meth:`flush` together.

    Args:
        world: all ranks.
        keeper: the rank that has the run directory.
        path: where the checkpoints go.
        sees: whether this rank sees that folder; else its slice travels to the keeper.
        when: to save.
        keep: how many checkpoints are kept.
    """

    def __init__(
        self,
        world: World,
        keeper: int,
        path: Path,
        sees: bool,
        when: When,
        keep: int,
    ) -> None:
        self._world, self._keeper, self.sees = world, keeper, sees
        self._folder, self._keep = CheckpointFolder(path), keep
        self.sync: Callable[[], None] = lambda: None
        """On the keeper, makes the history last before a checkpoint counts as whole."""
        self.when = when
        self._writer = BackgroundWriter()
        self._sending: MPI.Request | None = None
        self._task: _Task | None = None
        self._last, self._step, self._begun = time.monotonic(), -1, 0
        self._saved, self._nbytes, self._pause = 0, 0, 0.0
        self._failed: list[FailedSave] = []
        self._holdings: Holdings | None = None
        self._letters: MPI.Intracomm | None = None
        """For messages that arrive while the exchange's own are under way."""

    @property
    def outcome(self) -> Saved:
        """What came of all saves so far, on the keeper."""
        return Saved(self._saved, self._nbytes, self._pause, tuple(self._failed))

    def connect(self, holdings: Holdings) -> None:
        """Before the first save: what the ranks hold. Every rank must call it, and in the end :meth:`close`."""
        self._holdings = holdings
        self._letters = MPI.Intracomm(self._world.comm.Dup())

    def close(self) -> None:
        """Give back what :meth:`connect` took."""
        if self._letters is not None:
            self._letters.Free()
            self._letters = None

    def due(self) -> bool:
        """Asked between steps: whether a save is due by the clock. A save that is under way moves on here."""
        self._move_on()
        return self._world.rank == self._keeper and self._is_late()

    def wants(self, version: int, last: bool, stopped: bool) -> bool:
        """Whether to save at a cut; every rank must ask."""
        late = self.when.seconds is not None and self._world.share(self._is_late(), self._keeper, _OPERATION, version)
        ends = last and (self.when.at_end or self._begun > 0)
        return version != self._step and (stopped or late or ends or version in self.when.versions)

    def save(
        self,
        version: int,
        kept: list[Kept],
        mine: Any,
        describe: Callable[[list[Any]], tuple[Manifest, bytes]],
    ) -> None:
        """Copy, or write, what this rank holds while all stand still.

        Args:
            version: of the parameters.
            kept: what this rank holds of the vectors.
            mine: small things of this rank that belong into the checkpoint.
            describe: on the keeper, makes of every rank's ``mine`` the manifest, without files, and the file of
                small arrays.
        """
        started, world = time.perf_counter(), self._world
        now.work(_OPERATION, version)
        self._settle(version)
        told = world.gather_to(mine, self._keeper, _OPERATION, version)
        part, reason = self._folder.path, ""
        if told is not None:
            try:
                part = self._folder.begin(version)
            except OSError as error:
                reason = reason_of(error)
        part, reason = world.share((part, reason), self._keeper, _OPERATION, version)
        self._last, self._step, self._begun = time.monotonic(), version, self._begun + 1
        assert self._holdings is not None
        writers = self._holdings.writers
        if told is not None:
            self._task = _Task(version, writers, *describe(told))
            self._task.reason = reason
        if not reason:
            now.work(_OPERATION, version)
            if world.rank in writers:
                self._give(Slice(self._holdings.saved(kept)), part)
            if told is not None:
                self._take_from_afar(writers, part)
        self._move_on()
        self._pause += time.perf_counter() - started

    def flush(self, version: int) -> None:
        """Return on every rank when the last save has come to its end."""
        started = time.perf_counter()
        self._settle(version)
        self._world.meet("finishing a checkpoint", version)
        self._pause += time.perf_counter() - started

    def _is_late(self) -> bool:
        return self.when.seconds is not None and time.monotonic() - self._last >= self.when.seconds

    # Files

    def _give(self, content: Slice, part: Path) -> None:
        if self.sees:
            self._writer.write(content, part / _file_of(self._world.rank))
        else:
            self._world.comm.send(content.stretches, self._keeper, _TAG)
            travelling.send(self._world, content.pieces(), self._keeper)

    def _take_from_afar(self, writers: Collection[int], part: Path) -> None:
        assert self._task is not None
        assert self._holdings is not None
        for rank in writers:
            if not self._holdings.sees[rank]:
                with waiting("receiving a slice of a checkpoint", self._step, (self._world.origin[rank],)):
                    stretches = self._world.comm.recv(source=rank, tag=_TAG)
                pieces = travelling.receive(self._world, rank)
                self._task.arrived[rank] = write_file(part / _file_of(rank), pieces, stretches)

    # From the written files to a whole checkpoint

    def _move_on(self) -> None:
        """Tell the keeper of this rank's file when it is there; the keeper finishes when it knows of all."""
        world, letters = self._world, self._letters
        if letters is None:
            return
        if world.rank != self._keeper:
            if self._sending is not None and self._sending.Test():
                self._sending = None
            if (written := self._writer.take()) is not None:
                self._sending = letters.isend(written, self._keeper)
            return
        task = self._task
        if task is None:
            return
        if (written := self._writer.take()) is not None:
            task.arrived[world.rank] = written
        status = MPI.Status()
        while letters.iprobe(status=status):
            task.arrived[status.Get_source()] = letters.recv(source=status.Get_source())
        if not task.missing and not task.finishing:
            task.finish(self._folder, self._keep, self.sync)
        if task.is_over:
            self._task = None
            self._close(task)

    def _close(self, task: _Task) -> None:
        if not task.reason:
            self._saved, self._nbytes = self._saved + 1, task.nbytes
            log.info("saved step %d", task.step)
            return
        self._folder.abandon(task.step)
        self._failed.append(FailedSave(task.step, task.reason))
        log.warning("step %d could not be saved: %s", task.step, task.reason)
        say(
            f"mpitrain: warning: step {task.step} could not be saved in {self._folder.path} ({task.reason}): the run "
            "goes on without",
            to_errors=True,
        )

    def _settle(self, version: int) -> None:
        """Return when the keeper knows of this rank's file; on the keeper, when the save has come to its end."""
        now.work("finishing a checkpoint", version)

        self._writer.wait(now.moved)
        self._move_on()
        if self._sending is not None:
            with waiting("finishing a checkpoint", version, (self._world.origin[self._keeper],)):
                self._sending.Wait()
            self._sending = None
        moves = 0
        while self._task is not None:
            if self._task.moves != moves:  # a slow disk is not one that stands still
                moves = self._task.moves
                now.moved()
            missing = tuple(self._world.origin[rank] for rank in self._task.missing)
            if missing:
                with waiting("finishing a checkpoint", version, missing):
                    time.sleep(_LOOK)
            else:
                time.sleep(_LOOK)
            self._move_on()


class _Task:
    """One save, on the keeper.

    Args:
        step: that is saved.
        writers: ranks that write a file.
        manifest: without files.
        state: content of the file of small arrays.
    """

    def __init__(self, step: int, writers: Collection[int], manifest: Manifest, state: bytes) -> None:
        self.step, self._writers, self._manifest, self._state = step, writers, manifest, state
        self.arrived: dict[int, Written] = {}
        self.reason = ""
        self.nbytes = 0
        self.moves = 0
        """Grows with everything that is on the disk."""
        self._thread: threading.Thread | None = None

    @property
    def missing(self) -> list[int]:
        """Ranks of which nothing is known yet; those of a save that never began do not count."""
        return [] if self.reason else [rank for rank in self._writers if rank not in self.arrived]

    @property
    def finishing(self) -> bool:
        """Whether :meth:`finish` was called."""
        return self._thread is not None

    @property
    def is_over(self) -> bool:
        """Whether the checkpoint is whole, or ``reason`` says why not."""
        return self._thread is not None and not self._thread.is_alive()

    def finish(self, folder: CheckpointFolder, keep: int, sync: Callable[[], None]) -> None:
        """Begin to write what is left."""
        self._thread = threading.Thread(
            target=self._finish, args=(folder, keep, sync), name="mpitrain finisher", daemon=True
        )
        self._thread.start()

    def _finish(self, folder: CheckpointFolder, keep: int, sync: Callable[[], None]) -> None:
        if self.reason:
            return
        part = folder.part_of(self.step)
        small = write_file(part / STATE, [np.frombuffer(self._state, np.uint8)])
        self._moved()
        written = [small, *(self.arrived[rank] for rank in sorted(self.arrived))]
        failed = next((w.reason for w in written if w.stored is None), "")
        if failed:
            self.reason = failed
            return
        manifest = replace(self._manifest, files={w.name: w.stored for w in written if w.stored is not None})
        try:
            sync()
            self._moved()
            folder.finish(manifest, keep, self._moved)
        except (OSError, InputError) as error:
            self.reason = reason_of(error.__cause__ or error)  # type: ignore[arg-type]
        self.nbytes = manifest.nbytes

    def _moved(self) -> None:
        self.moves += 1


def _file_of(rank: int) -> str:
    return f"slice-{rank:04d}.safetensors"
