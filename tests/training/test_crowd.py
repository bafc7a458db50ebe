"""Many more ranks than cores."""

from __future__ import annotations

import json
from pathlib import Path

from mpitrain.config import MODES
from tests.support.mpi import launch

RANKS, SLOWER = 16, 4


def test_sixteen_ranks_take_at_most_four_times_as_long_as_two(tmp_path: Path) -> None:
    launch(RANKS, ["-m", "tests.training.crowd", str(tmp_path)], 240).check()
    few, all_ = json.loads((tmp_path / "told.json").read_text())
    for mode in MODES:
        (status, samples, seconds), (_, same, reference) = all_[mode], few[mode]
        assert (status, samples) == ("complete", same)
        assert seconds < SLOWER * reference, mode
