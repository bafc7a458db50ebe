"""MNIST, its sample, and folders of IDX files like theirs, in memory."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mpitrain.data.idx import parse_idx, read_content
from mpitrain.data.sources import FILES, SAMPLE, SAMPLE_FOLDER, Source, cache_folder, known, sha256
from mpitrain.errors import InputError

VALIDATION_SHARE = 12
"""One in so many training images is for validation: of MNIST's 60,000 the 5,000 of the TF1 tutorials."""


@dataclass(frozen=True)
class Split:
    """Samples: ``images`` uint8 ``(n, height, width)`` and ``labels`` uint8 ``(n,)``, both read-only."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def rows(self) -> np.ndarray:
        """Each image as one opaque item, shape ``(n,)``: numpy gathers these fastest."""
        size = math.prod(self.images.shape[1:])
        return self.images.reshape(len(self), size).view(f"V{size}")[:, 0]


@dataclass(frozen=True)
class Dataset:
    """A data set in its three parts; labels run from 0 to ``num_classes - 1``."""

    name: str
    train: Split
    validation: Split
    test: Split
    num_classes: int


def load(name: str = "mnist", data_dir: Path | None = None, cache: Path | None = None) -> Dataset:
    """Read a data set: 55,000 / 5,000 / 10,000 images of MNIST, 5,500 / 500 / 1,000 of its sample.

    As in the TF1 tutorials (``tensorflow.contrib.learn.datasets.mnist``) the *first* twelfth of the training
    images is the validation set. Nothing is fetched here: ``mpitrain.data.fetch.locate`` does that, before
    MPI starts.

    Args:
        name: ``mnist`` or ``mnist-sample``.
        data_dir: a folder with the four IDX files of any such data set, gzip or not, to be read in place of
            MNIST; the data set is then called after the folder.
        cache: where fetched data sets are, ``cache_folder()`` without it.

    Raises:
        InputError: an unknown name; a folder or file that is missing or defective; a checksum that differs;
            images and labels that do not match; too few samples.
    """
    source = known(name)
    if data_dir is not None:
        reject_two_sources(source)
        return _assemble(data_dir.absolute().name, data_dir, None)
    folder = SAMPLE_FOLDER if source is SAMPLE else (cache or cache_folder()) / source.name
    return _assemble(name, folder, source)


def reject_two_sources(source: Source) -> None:
    """Raise InputError when ``source`` is the sample: its folder is its own, and none may be given."""
    if source is SAMPLE:
        raise InputError(f"--data-dir and --dataset {source.name} name two data sets: leave one of them out.")


def find_files(folder: Path) -> dict[str, Path]:
    """Where each of ``FILES`` is in the data folder of the user.

    Raises:
        InputError: the folder is missing, or lacks a file.
    """
    # os.path says no where pathlib raises: to a name that is too long, or below a folder that cannot be entered.
    if not os.path.isdir(folder):
        raise InputError(f"The data folder {folder} does not exist or is no folder: check --data-dir.")
    return _find(folder, f"The data folder {folder}", "put the files there, with or without .gz, or check --data-dir")


def _find(folder: Path, subject: str, remedy: str) -> dict[str, Path]:
    found = {name: path for name in FILES if (path := _spelled(folder, name))}
    if lacking := [name for name in FILES if name not in found]:
        raise InputError(f"{subject} lacks {' and '.join(lacking)}: {remedy}.")
    return found


def _spelled(folder: Path, name: str) -> Path | None:
    """The file ``name``, also with a dot (``train-images.idx3-ubyte``), also with ``.gz``."""
    spellings = (folder / (stem + end) for end in ("", ".gz") for stem in (name, name.replace("-idx", ".idx")))
    return next((path for path in spellings if path.is_file()), None)


def _assemble(name: str, folder: Path, source: Source | None) -> Dataset:
    paths = find_files(folder) if source is None else _find(folder, f"{name} in {folder}", _remedy(source))
    train, test = (_read_pair(paths, *pair, source) for pair in (FILES[:2], FILES[2:]))
    if train.images.shape[1:] != test.images.shape[1:]:
        sizes = " and ".join("x".join(map(str, split.images.shape[1:])) for split in (train, test))
        raise InputError(f"The training and test images in {folder} differ in size ({sizes}): use files that match.")
    if len(train) < VALIDATION_SHARE or not test.images.size:
        raise InputError(
            f"The data in {folder} has {len(train)} training and {len(test)} test images where at least"
            f" {VALIDATION_SHARE} and 1, not empty, are needed: use a larger data set."
        )
    cut = len(train) // VALIDATION_SHARE
    return Dataset(
        name,
        train=Split(train.images[cut:], train.labels[cut:]),
        validation=Split(train.images[:cut], train.labels[:cut]),
        test=test,
        num_classes=1 + int(max(train.labels.max(), test.labels.max())),
    )


def _read_pair(paths: dict[str, Path], images_name: str, labels_name: str, source: Source | None) -> Split:
    images = _read(paths[images_name], images_name, 3, source)
    labels = _read(paths[labels_name], labels_name, 1, source)
    if len(images) != len(labels):
        raise InputError(
            f"{paths[images_name]} holds {len(images):,} images but {paths[labels_name]} {len(labels):,}"
            " labels: use files that belong together."
        )
    return Split(images, labels)


def _read(path: Path, name: str, dimensions: int, source: Source | None) -> np.ndarray:
    content = read_content(path)
    if source is not None and (found := sha256(content)) != source.checksums[name]:
        raise InputError(
            f"{path} is damaged, its SHA-256 is {found} instead of {source.checksums[name]}:"
            f" {'delete it or ' if source is not SAMPLE else ''}{_remedy(source)}."
        )
    array = parse_idx(content, path)
    if array.dtype != np.uint8 or array.ndim != dimensions:
        raise InputError(
            f"{path} holds {array.dtype} data of {array.ndim} dimensions where uint8 of {dimensions} are"
            " needed: check that it is the right file."
        )
    # numpy's own memory has huge pages, the file's bytes have not: random rows are gathered a fifth faster.
    array = array.copy()
    array.flags.writeable = False
    return array


def _remedy(source: Source) -> str:
    if source is SAMPLE:
        return "install mpitrain again"
    return "run `python -m mpitrain data fetch`, give --data-dir, or use --dataset mnist-sample"
