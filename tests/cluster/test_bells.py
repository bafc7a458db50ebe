from __future__ import annotations

from tests.support.mpi import launch


def test_strangers_change_nothing_and_the_end_of_a_peer_is_named() -> None:
    ended = launch(3, ["-m", "tests.cluster.doorbells"], 150).check()
    assert ended.out.count("well") == 3
