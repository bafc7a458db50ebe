"""A comparison that was interrupted: what was compared, what was chosen by measuring, and which runs are complete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitrain.config import RunConfig
from mpitrain.errors import InputError
from mpitrain.reporting.comparison import COMPARISON
from mpitrain.reporting.files import plain, write_json, writing

_FREE = {
    "mode",
    "run_dir",
    "resume",
    "data_dir",
    "log_every",
    "checkpoint_every",
    "keep",
    "stall_timeout",
    "start_timeout",
}
"""Options that may change between the parts of a comparison."""

CHOSEN = ("jit", "allreduce", "shard_optimizer")
"""Options that are chosen by measuring where they are not given: all runs of a comparison have the same."""


@dataclass(frozen=True)
class Begun:
    """What a comparison has in its folder from its first run on.

    Args:
        options: that its runs have in common, as they were given, and ``seeds``, by which their folders are named.
        samples: of each run.
        ranks: of the job.
        choices: of ``CHOSEN``.
    """

    options: Mapping[str, Any]
    samples: int
    ranks: int
    choices: Mapping[str, Any]

    @classmethod
    def of(cls, config: RunConfig, seeds: int, samples: int, ranks: int, chosen: RunConfig) -> Begun:
        """From the options as they were given, and as they were resolved."""
        options = {name: value for name, value in config.as_dict().items() if name not in _FREE}
        return cls(options | {"seeds": seeds}, samples, ranks, {name: getattr(chosen, name) for name in CHOSEN})

    @classmethod
    def read(cls, folder: Path) -> Begun | None:
        """What ``folder`` has; None where no comparison has come as far there.

        Raises:
            InputError: it is not what this writes.
        """
        path = folder / COMPARISON
        if not path.exists():
            return None
        try:
            told = json.loads(path.read_bytes())
            return cls(dict(told["options"]), int(told["samples"]), int(told["ranks"]), dict(told["choices"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} cannot be read ({error}): start the comparison anew in another --run-dir"
            ) from None

    def write(self, folder: Path) -> None:
        """Store it in ``folder``."""
        write_json(folder / COMPARISON, self)

    def check(self, folder: Path, now: Begun) -> None:
        """Whether the comparison goes on as it was.

        Raises:
            InputError: it would not.
        """
        for name, value in plain(now.options).items():
            if self.options.get(name) != value:
                option = f"--{name.replace('_', '-')}"
                raise InputError(
                    f"the comparison in {folder} has {option} {self.options.get(name)}, and now it is {value}: give "
                    "the same options as at its start, or another --run-dir"
                )
        if (self.samples, self.ranks) != (now.samples, now.ranks):
            raise InputError(
                f"each run of the comparison in {folder} has {self.samples:,} samples on {self.ranks} ranks, and now "
                f"it would have {now.samples:,} on {now.ranks}: keep the number of ranks and the first of --modes, or "
                "give another --run-dir"
            )


def clear(run_dir: Path) -> None:
    """Make way for a run that was begun and did not come to its end.

    Raises:
        InputError: it cannot be removed.
    """
    with writing(run_dir):
        if run_dir.exists():
            shutil.rmtree(run_dir)
