"""The checkpoints of a run: folders that are whole as soon as they have their final names."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mpitrain.checkpoints.manifest import CHECKSUM, MANIFEST, Manifest
from mpitrain.checkpoints.reader import check
from mpitrain.errors import InputError
from mpitrain.reporting.files import sync_folder, write_whole

FOLDER = "checkpoints"
"""Of the run directory."""

_NAME = re.compile(r"step-(\d{9,})")
_PART, _ASIDE, _OLD = ".part", ".aside", ".old"


def is_checkpoint(path: Path) -> bool:
    """Whether ``path`` is, or would be, a finished checkpoint's folder."""
    return _NAME.fullmatch(path.name) is not None


def name_of(step: int) -> str:
    """The folder of a checkpoint."""
    return f"step-{step:09d}"


class CheckpointFolder:
    """The folder in which a run's checkpoints are; one process changes it, any may look.

    Args:
        path: need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def steps(self) -> list[int]:
        """The checkpoints that were finished, ascending."""
        with suppress(OSError):
            found = (_NAME.fullmatch(name) for name in os.listdir(self.path))
            return sorted(int(match[1]) for match in found if match)
        return []

    def of(self, step: int) -> Path:
        """Where a finished checkpoint is."""
        return self.path / name_of(step)

    def part_of(self, step: int) -> Path:
        """Where a checkpoint is while it is being written."""
        return self.path / (name_of(step) + _PART)

    def newest_whole(self, told: Callable[[str], None]) -> tuple[Path, Manifest] | None:
        """The newest checkpoint that is whole; what is wrong with newer ones is ``told``."""
        for step in reversed(self.steps()):
            try:
                return self.of(step), check(self.of(step))
            except InputError as error:
                told(str(error))
        return None

    def begin(self, step: int) -> Path:
        """A new folder for the files of a checkpoint.

        Raises:
            OSError: it cannot be made.
        """
        self.path.mkdir(exist_ok=True)
        part = self.part_of(step)
        if part.exists():
            shutil.rmtree(part)
        part.mkdir()
        return part

    def finish(self, manifest: Manifest, keep: int, moved: Callable[[], None] = lambda: None) -> Path:
        """Give the checkpoint whose files are all in their folder its name, and remove what it replaces.

        Args:
            manifest: of it, complete.
            keep: how many of the newest are kept, this one among them.
            moved: called whenever something is on the disk.

        Raises:
            OSError: it cannot be written; older ones are as they were.
            InputError: the same.
        """
        final, part = self.of(manifest.step), self.part_of(manifest.step)
        text, checksum = manifest.encode()
        write_whole(part / MANIFEST, text)
        moved()
        write_whole(part / CHECKSUM, checksum)
        moved()
        if final.exists():
            self._remove(final)
        part.rename(final)
        sync_folder(self.path)
        moved()
        for name in self._named(_ASIDE):
            self._remove(self.path / name)
        for step in self.steps()[:-keep]:
            self._remove(self.of(step))
        return final

    def abandon(self, step: int) -> None:
        """Remove what there is of an unfinished checkpoint."""
        shutil.rmtree(self.part_of(step), ignore_errors=True)

    def clean(self) -> None:
        """Remove what killed runs have left unfinished, or half removed."""
        for name in self._named(_PART) + self._named(_OLD):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def go_back_to(self, step: int) -> None:
        """Set checkpoints of a later step aside: they are no more this run's, and go when the next one is whole.

        Raises:
            OSError: they cannot be renamed.
        """
        for later in self.steps():
            if later > step:
                aside = self.path / (name_of(later) + _ASIDE)
                shutil.rmtree(aside, ignore_errors=True)
                self.of(later).rename(aside)

    def _named(self, ending: str) -> list[str]:
        with suppress(OSError):
            names = os.listdir(self.path)
            return [name for name in names if name.endswith(ending) and _NAME.fullmatch(name.removesuffix(ending))]
        return []

    def _remove(self, folder: Path) -> None:
        """By a rename first, so that at no moment a part of a checkpoint has its name."""
        with suppress(OSError):
            old = folder.with_suffix(_OLD)
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
            shutil.rmtree(old, ignore_errors=True)
