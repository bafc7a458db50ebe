from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.mpi import launch

Seen = list[dict[str, Any]]


def pytest_configure() -> None:
    """A shell's background job ignores Ctrl-C, and so would all that the tests start from there."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests last; without root neither network namespaces nor Slurm can be made: they are left out and counted."""
    items.sort(key=lambda item: ("benchmarks" in item.path.parts, item.get_closest_marker("root") is not None))
    if os.geteuid() == 0:
        return
    kept = [item for item in items if item.get_closest_marker("root") is None]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


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
