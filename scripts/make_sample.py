#!/usr/bin/env python3
"""Make the data set mnist-sample from MNIST: every tenth image of the training and of the test files.

    python scripts/make_sample.py FOLDER_WITH_MNIST [OUTPUT_FOLDER]

The same input gives the same bytes with the same zlib; the SHA-256 of the unpacked files, which
mpitrain/data/sources.py holds and every load checks, is the same everywhere.
"""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mpitrain.data.idx import format_idx, read_idx
from mpitrain.data.mnist import find_files
from mpitrain.data.sources import SAMPLE_FOLDER, sha256

STEP = 10


def make_sample(source: Path, target: Path) -> dict[str, str]:
    """Write the samples of ``source`` whose index ``STEP`` divides to ``target``; the SHA-256 of each."""
    target.mkdir(parents=True, exist_ok=True)
    checksums = {}
    for name, path in find_files(source).items():
        content = format_idx(read_idx(path)[::STEP])
        temporary = target / f".{name}.gz.{os.getpid()}"
        temporary.write_bytes(gzip.compress(content, compresslevel=9, mtime=0))
        temporary.replace(target / f"{name}.gz")
        checksums[name] = sha256(content)
    return checksums


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folders = [Path(argument) for argument in sys.argv[1:]]
    for name, checksum in make_sample(folders[0], folders[1] if len(folders) > 1 else SAMPLE_FOLDER).items():
        print(f'"{name}": "{checksum}",')
