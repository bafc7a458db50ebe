from __future__ import annotations

import gc
import time

from mpitrain.training.garbage import short_collections


def seconds_of_a_full_collection() -> float:
    start = time.perf_counter()
    gc.collect()
    return time.perf_counter() - start


def test_what_is_there_before_costs_nothing_inside_and_is_collected_again_after() -> None:
    many = [[[]] for _ in range(300_000)]
    gc.collect()
    before = seconds_of_a_full_collection()
    with short_collections():
        inside = min(seconds_of_a_full_collection() for _ in range(3))
        assert gc.get_freeze_count() > len(many)
    assert inside < before / 3
    assert gc.get_freeze_count() == 0


def test_objects_that_the_script_itself_has_frozen_stay_so() -> None:
    gc.freeze()
    try:
        with short_collections():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
