from __future__ import annotations

import pytest

from tests.cluster_lab.slurm import Slurm
from tests.cluster_lab.test_slurm import WIRING
from tests.cluster_lab.trained import Mpi
from tests.support.mpi import environment, run

DOCTOR = ["-m", "mpitrain", "doctor", "--dataset", "mnist-sample"]


def test_alone(mpi: Mpi) -> None:
    ended = run([mpi.python, *DOCTOR], 30, environment({"PATH": f"{mpi.prefix}/bin:/usr/bin:/bin"})).check()
    assert f"{mpi.launcher} (" in ended.out
    assert ended.out.endswith("nothing is wrong\n")


@pytest.mark.root
def test_a_wrong_wiring_of_slurm_is_a_line_of_the_table(slurm: Slurm, mpi: Mpi) -> None:
    ended = slurm.run(["srun", "--mpi=none", "--nodes=2", "--ntasks=3", mpi.python, *DOCTOR])
    assert ended.code == 1, ended.err
    assert "1 thing is wrong" in ended.out
    assert f"use srun --mpi={WIRING[mpi.name]}" in ended.out
    assert ended.out.count("WRONG") == 1
