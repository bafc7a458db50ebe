from __future__ import annotations

import sys

from tests.support.mpi import environment, launch, run


def test_help_loads_neither_tensorflow_nor_mpi() -> None:
    code = (
        "import sys; from mpitrain.__main__ import main; assert main(['--help']) == 0; "
        "assert not {'tensorflow', 'keras', 'mpi4py.MPI', 'matplotlib'} & set(sys.modules)"
    )
    ended = run([sys.executable, "-c", code], 30, environment()).check()
    for option in ("--mode", "--train-steps", "--lr-scaling", "--from-tf1", "--config", "--dry-run"):
        assert option in ended.out


def test_one_rank_prints_the_help() -> None:
    ended = launch(3, ["-m", "mpitrain", "train", "--help"], 30).check()
    assert ended.out.count("Usage:") == 1
