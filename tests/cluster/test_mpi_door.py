from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.mpi import environment


@pytest.mark.parametrize(
    "module",
    [
        "cluster.waiting",
        "cluster.hooks",
        "cluster.world",
        "exchange.registry",
        "exchange.servers.endpoint",
        "training.run",
    ],
)
def test_importing_a_module_does_not_start_mpi(module: str) -> None:
    program = f"import mpitrain.{module}; from mpi4py import MPI; print(MPI.Is_initialized())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
