from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.mpi import ROOT, environment, launch, run

Seen = list[dict[str, Any]]


def pytest_configure() -> None:
    """A shell's background job ignores Ctrl-C, and so would all that the tests start from there."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests last, and those of what is built meanwhile; what cannot be made here is left out and counted.

    Without root that is network namespaces and Slurm, and programs in C++ where there is no compiler.
    """
    marked: dict[str, set[pytest.Item]] = {
        name: {item for item in items if item.get_closest_marker(name)} for name in ("root", "compiler")
    }
    items.sort(key=lambda item: ("benchmarks" in item.path.parts, *(item in those for those in marked.values())))
    if os.geteuid() == 0:
        return
    left_out = marked["root"] | (set() if shutil.which("g++") and shutil.which("make") else marked["compiler"])
    kept = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture(scope="session")
def horovod() -> Path:
    """The interpreter that has Horovod; scripts/test.sh has begun to build it, and this waits for the end."""
    python = Path(sys.prefix, "horovod", "bin", "python")
    assert python.exists(), "no environment for Horovod: scripts/test.sh makes one"
    run([str(ROOT / "scripts" / "install-horovod.sh"), str(python)], 500, environment()).check()
    return python


@pytest.fixture(scope="session")
def exchanged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Seen]:
    """What each rank of a named case of ``tests/exchange/cases.py`` saw; one launch makes them all."""
    folder: Path = tmp_path_factory.mktemp("cases")
    launch(7, ["-m", "tests.exchange.cases", str(folder)], timeout=180).check()

    def of(name: str) -> Seen:
        files = sorted(folder.glob(f"{name}.*"), key=lambda p: int(p.suffix[1:]))
        assert files, name
        return [pickle.loads(path.read_bytes()) for path in files]

    return of
