from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_lab.hosts import Lab
from tests.cluster_lab.slurm import Slurm
from tests.cluster_lab.trained import Mpi


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs root takes longest: it comes last."""
    items.sort(key=lambda item: item.get_closest_marker("root") is not None)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts, with the names that hostfiles/two-machines.* give."""
    with Lab(tmp_path_factory.mktemp("lab"), ("node1", "node2")) as lab:
        yield lab


@pytest.fixture(scope="session")
def slurm(lab: Lab) -> Slurm:
    return Slurm(lab)


@pytest.fixture(scope="session", params=["openmpi", "mpich"])
def mpi(request: pytest.FixtureRequest) -> Mpi:
    """The MPI of this environment, and the one that scripts/test.sh installs beside it."""
    prefix = Path(sys.prefix) if request.param == "openmpi" else Path(sys.prefix, "mpich")
    return Mpi.at(request.param, prefix)
