"""The manifest of a checkpoint: everything but the vectors, and where and how these are stored."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.checkpoints.slices import Stretch
from mpitrain.errors import InputError
from mpitrain.exchange.base import Totals
from mpitrain.exchange.tickets import Place, Span
from mpitrain.parameters.layout import Layout
from mpitrain.parameters.optimizers import OptimizerSpec
from mpitrain.reporting.files import plain

FORMAT = 1
"""Grows whenever an older mpitrain could not read what is written."""

MANIFEST, CHECKSUM = "manifest.json", "manifest.sha256"
STATE = "state.safetensors"


@dataclass(frozen=True)
class StoredFile:
    """A file beside the manifest.

    Args:
        nbytes: its length.
        sha256: of its content, in hexadecimal.
        stretches: what of the vectors lies in it.
    """

    nbytes: int
    sha256: str
    stretches: tuple[Stretch, ...] = ()


@dataclass(frozen=True)
class Local:
    """A worker that trains alone between exchanges.

    Args:
        iterations: updates that its own optimizer has seen.
        begun: whether its own parameters say where it has come to.
    """

    iterations: int
    begun: bool


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One checkpoint.

    Args:
        created: UTC, ISO 8601.
        place: how far the run had come in its data.
        samples: training samples of the data set.
        dataset: its name.
        totals: of all that was applied since the start of the run.
        recorded: the same at the last record of the history; None before the first.
        layout: of the parameter vector: (name, shape) of each variable.
        dtype: of the parameters.
        optimizer: class and arguments.
        iterations: updates that the optimizer has seen.
        state: length of the model's float state.
        undivided: whether gradients of summed losses were added.
        mode: of the run, with ``workers``, ``servers`` and ``threads`` of each worker.
        train_seconds: the training clock; ``wall_seconds`` from the start of the process, over all parts of the run.
        local: of each worker, where they train alone between exchanges.
        tally: worker → what was counted of it; see ``Counted``.
        config: the options as they were given, without where the run is.
        choices: what was chosen by measuring, as explicit values.
        versions: of the libraries that computed.
        resumed: the steps at which the run was resumed before.
        files: by name.
    """

    created: str
    place: Place
    samples: int
    dataset: str
    totals: Totals
    recorded: Totals | None
    layout: tuple[tuple[str, tuple[int, ...]], ...]
    dtype: str
    optimizer: OptimizerSpec
    iterations: int
    state: int
    undivided: bool
    mode: str
    workers: int
    servers: int
    threads: int
    train_seconds: float
    wall_seconds: float
    local: tuple[Local | None, ...] = ()
    tally: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    resumed: tuple[int, ...] = ()
    files: Mapping[str, StoredFile] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Updates applied."""
        return self.totals.version

    @property
    def epoch(self) -> float:
        """Passes over the data."""
        return self.place.settled / self.samples

    @property
    def nbytes(self) -> int:
        """Of all files but the manifest."""
        return sum(file.nbytes for file in self.files.values())

    def vectors(self) -> dict[str, int]:
        """Elements of each vector, without padding."""
        sizes: dict[str, int] = {}
        for file in self.files.values():
            for stretch in file.stretches:
                sizes[stretch.vector] = max(sizes.get(stretch.vector, 0), stretch.stop)
        return sizes

    def padded_layout(self) -> Layout:
        """The layout as it is in memory."""
        return Layout.of(self.layout, self.dtype)

    def encode(self) -> tuple[bytes, bytes]:
        """The content of ``MANIFEST`` and of ``CHECKSUM``, which ``sha256sum -c`` reads."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["optimizer"] = {"name": self.optimizer.name, "config": self.optimizer.config}
        told = {"format": FORMAT, "step": self.step} | {name: plain(value) for name, value in values.items()}
        text = f"{json.dumps(told, indent=1, allow_nan=False)}\n".encode()
        return text, _checksum(text)


def _checksum(text: bytes) -> bytes:
    return f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n".encode()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the checkpoint in ``folder``; its other files are not looked at.

    Raises:
        InputError: naming the checkpoint and what is wrong with it.
    """
    try:
        text, checksum = ((folder / name).read_bytes() for name in (MANIFEST, CHECKSUM))
    except OSError as error:
        raise InputError(f"the checkpoint {folder} cannot be read ({error.strerror}: {error.filename})") from error
    if checksum != _checksum(text):
        raise InputError(f"the checkpoint {folder} is damaged: {MANIFEST} and {CHECKSUM} do not belong together")
    values = json.loads(text)
    if values["format"] > FORMAT:
        raise InputError(
            f"the checkpoint {folder} has format {values['format']}, and this mpitrain reads formats up to {FORMAT}: "
            "use the mpitrain that wrote it, or a newer one"
        )
    del values["format"], values["step"]
    recorded, optimizer = values["recorded"], values["optimizer"]
    return Manifest(
        **values
        | {
            "place": _place(values["place"]),
            "totals": _totals(values["totals"]),
            "recorded": None if recorded is None else _totals(recorded),
            "layout": tuple((name, tuple(shape)) for name, shape in values["layout"]),
            "optimizer": OptimizerSpec(optimizer["name"], optimizer["config"]),
            "local": tuple(None if each is None else Local(**each) for each in values["local"]),
            "resumed": tuple(values["resumed"]),
            "files": {name: _file(file) for name, file in values["files"].items()},
        }
    )


def _place(values: dict[str, Any]) -> Place:
    return Place(values["handed"], tuple(Span(*span) for span in values["returned"]))


def _totals(values: dict[str, Any]) -> Totals:
    arrays = {"sums": np.array([float(v) for v in values["sums"]]), "dropped": np.array(values["dropped"], np.int64)}
    return Totals(**values | arrays)


def _file(values: dict[str, Any]) -> StoredFile:
    return StoredFile(values["nbytes"], values["sha256"], tuple(Stretch(**s) for s in values["stretches"]))
