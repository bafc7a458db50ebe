#!/usr/bin/env python3
"""Forget the packages of this virtual environment that an interrupted pip has left half installed.

pip takes a package for installed as soon as its metadata is there, but writes RECORD and INSTALLER last. Without its
metadata, a package is installed again.
"""

from __future__ import annotations

import csv
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def broken(site: Path) -> Iterator[Path]:
    """The metadata folders in ``site`` whose package is not whole."""
    for metadata in sorted(site.glob("*.dist-info")):
        last = (metadata / "RECORD", metadata / "INSTALLER")
        if not all(path.exists() for path in (*last, *_files(site, last[0]))):
            yield metadata


def _files(site: Path, record: Path) -> Iterator[Path]:
    if record.exists():
        with record.open(newline="") as lines:
            # Compiled files come and go.
            yield from (site / row[0] for row in csv.reader(lines) if row and not row[0].endswith(".pyc"))


if __name__ == "__main__":
    if sys.prefix == sys.base_prefix:
        sys.exit("drop_broken_packages.py works on virtual environments only: start it with the python of one")
    for site in sorted({Path(sysconfig.get_path(scheme)) for scheme in ("purelib", "platlib")}):
        for half in [*broken(site), *site.glob("~*")]:
            print(f"dropping {half}")
            shutil.rmtree(half)
