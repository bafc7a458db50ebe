"""A few of the many kills, in each mode."""

from __future__ import annotations

import sys

from tests.support.mpi import ROOT, environment, run


def test_what_a_killed_job_has_saved_goes_on() -> None:
    command = [sys.executable, "-m", "benchmarks.kills", "--kills", "2"]
    ended = run(command, 280, environment(), ROOT).check()
    assert ended.out.count("| 2 |") == 3
    assert ended.out.count("| 0 |\n") == 3
