"""``bench servers`` as a user starts it."""

from __future__ import annotations

import json

from tests.support.mpi import launch


def test_every_way_is_timed() -> None:
    arguments = ["--servers", "2", "--sizes", "5000", "--optimizer", "lion", "--json"]
    timings = json.loads(launch(4, ["-m", "mpitrain", "bench", "servers", *arguments], 60).check().out)
    told = {(t["elements"], t["mode"], t["transport"]) for t in timings}
    assert told == {(5000, m, t) for m in ("ps-sync", "ps-async") for t in ("shared", "mpi")}
    for t in timings:
        assert (t["servers"], t["workers"]) == (2, 2)
        assert t["pushes"] >= 8
        # Vectors are padded to 64 bytes.
        assert t["bytes_per_second"] >= 8 * t["elements"] * t["pushes_per_second"] > 0
        assert 0 < t["update_share"] < 1
        assert t["copied_per_second"] > 0
