"""Small checkpoints for tests, written by the real thing without MPI."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from mpitrain.checkpoints.folder import CheckpointFolder
from mpitrain.checkpoints.manifest import STATE, Local, Manifest
from mpitrain.checkpoints.packing import Holding, Packing
from mpitrain.checkpoints.slices import Slice
from mpitrain.checkpoints.writing import write_file
from mpitrain.exchange.base import Totals
from mpitrain.exchange.tickets import Place, Span
from mpitrain.parameters.layout import Layout
from mpitrain.parameters.optimizers import OptimizerSpec

LAYOUT = Layout.of([("dense/kernel", (5, 7)), ("dense/bias", (7,)), ("scale", ()), ("out/kernel", (7, 3))])


def vectors(seed: int = 0) -> dict[str, np.ndarray]:
    """Padded vectors whose padding is zero."""
    random = np.random.default_rng(seed)
    names = ("parameters", "optimizer.momentum")
    return {n: LAYOUT.pack([random.normal(size=e.shape) for e in LAYOUT.entries]) for n in names}


def manifest(step: int = 3) -> Manifest:
    totals = Totals(np.array([1.5, float("nan"), 120.0, 7.0]), step, 2 * step, 3.0, 2, 1, 0.01, np.array([1, 0]))
    return Manifest(
        created="2026-01-01T00:00:00+00:00",
        place=Place(120, (Span(0, 10, 10),)),
        samples=100,
        dataset="some",
        totals=totals,
        recorded=None,
        layout=tuple((e.name, e.shape) for e in LAYOUT.entries),
        dtype="float32",
        optimizer=OptimizerSpec("SGD", {"momentum": 0.9}),
        iterations=step,
        state=4,
        undivided=False,
        mode="ps-sync",
        workers=2,
        servers=2,
        threads=1,
        train_seconds=1.25,
        wall_seconds=2.5,
        local=(Local(5, True), None),
        config={"seed": 0},
    )


def make(path: Path, step: int = 3, borders: tuple[int, ...] = (0, 48, LAYOUT.size), keep: int = 9) -> Path:
    """A finished checkpoint in the run's folder ``path``, in as many slices as there are pairs of ``borders``."""
    folder, packing, held = CheckpointFolder(path), Packing(LAYOUT), vectors(step)
    part = folder.begin(step)
    written = [write_file(part / STATE, [np.frombuffer(save({"state": np.arange(4.0)}), np.uint8)])]
    for index, (low, high) in enumerate(pairwise(borders)):
        first, last = packing.packed(low), packing.packed(high)
        holdings = [
            Holding(n, v.dtype, last - first, lambda v=v[low:high]: v, first, packing, low) for n, v in held.items()
        ]
        content = Slice([(holding, first, last) for holding in holdings])
        written.append(write_file(part / f"slice-{index:04d}.safetensors", content.pieces(), content.stretches))
    files = {w.name: w.stored for w in written if w.stored is not None}
    assert len(files) == len(borders)
    return folder.finish(replace(manifest(step), files=files), keep)
