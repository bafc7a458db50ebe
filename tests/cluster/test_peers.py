"""Who is late, judged from heartbeats alone: no sockets, no clock, no MPI."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.cluster.peers import Late, Limits, Peer, describe_late, find_late
from mpitrain.cluster.waiting import Activity, Stage

LIMITS = Limits(stall=12.0, start=100.0)
NOW = 1000.0
ALL: tuple[int, ...] = ()


def peer(
    rank: int,
    stage: Stage = Stage.RUN,
    ranks: tuple[int, ...] | None = None,
    moved: float = 0.0,
    heard: float = 0.0,
    ended: bool = False,
) -> Peer:
    """A rank heard of ``heard`` and come on ``moved`` seconds ago."""
    made = Peer(rank, "h1", 0, 100 + rank, 0.0, NOW - heard, NOW - moved, ranks=ranks, stage=stage, ended=ended)
    return replace(made, step=7, operation="waiting for servers" if ranks is not None else "computing a gradient")


def job(*peers: Peer) -> dict[int, Peer]:
    return {p.rank: p for p in peers}


def late_ranks(*peers: Peer, fraction: float = 1.0, limits: Limits = LIMITS) -> list[int]:
    return [item.peer.rank for item in find_late(job(*peers), limits, NOW, fraction)]


def test_a_rank_that_comes_on_is_not_late_however_long_others_wait_for_it() -> None:
    assert late_ranks(peer(0, ranks=ALL, moved=11), peer(1, ranks=(0,), moved=9), peer(2, moved=11.9)) == []


def test_the_stuck_rank_is_late_and_not_those_who_wait_for_it() -> None:
    waiting = [peer(0, ranks=ALL, moved=50), peer(2, ranks=(1,), moved=50)]
    assert late_ranks(*waiting, peer(1, moved=11.9)) == []
    assert late_ranks(*waiting, peer(1, moved=12.1)) == [1]


def test_a_silent_rank_is_late_whatever_it_was_doing() -> None:
    for stage in Stage:
        for ranks in (None, ALL, (0,)):
            limit = LIMITS.of(stage)
            assert late_ranks(peer(0), peer(1, stage, ranks, heard=limit - 0.1)) == []
            (found,) = find_late(job(peer(0), peer(1, stage, ranks, heard=limit + 0.1)), LIMITS, NOW)
            assert (found.peer.rank, found.silent) == (1, True)


@pytest.mark.parametrize(("stage", "limit"), [(Stage.START, 100.0), (Stage.RUN, 12.0)])
def test_each_stage_has_its_limit(stage: Stage, limit: float) -> None:
    assert LIMITS.of(stage) == limit
    assert late_ranks(peer(0, stage, moved=limit - 0.1)) == []
    assert late_ranks(peer(0, stage, moved=limit + 0.1)) == [0]
    assert late_ranks(peer(0, stage, moved=limit / 3 + 0.1), fraction=1 / 3) == [0]
    assert late_ranks(peer(0, stage, moved=limit / 3 - 0.1), fraction=1 / 3) == []


def test_the_users_own_code_may_take_for_ever_while_nobody_needs_that_rank() -> None:
    resting = [peer(0, Stage.REST, moved=1e6), peer(1, Stage.REST, moved=1e6)]
    assert late_ranks(*resting) == []
    assert late_ranks(*resting, peer(2, ranks=(5,), moved=99)) == []
    assert late_ranks(*resting, peer(2, Stage.START, ranks=ALL, moved=99)) == []


def test_a_rank_that_does_not_come_to_the_run_is_late_after_the_start_timeout() -> None:
    found = find_late(job(peer(0, Stage.REST, moved=1e6), peer(1, Stage.START, (0,), moved=101)), LIMITS, NOW)
    assert [(item.peer.rank, item.seconds, item.silent) for item in found] == [(0, 101, False)]
    assert "has not come to this run" in found[0].how


def test_a_rank_that_has_left_is_late_sooner_because_it_will_never_come() -> None:
    left = peer(0, Stage.LEAVING, ranks=ALL, moved=50)
    assert late_ranks(left, peer(1, ranks=(0,), moved=3.9)) == []
    found = find_late(job(left, peer(1, ranks=(0,), moved=4.1)), LIMITS, NOW)
    assert [item.peer.rank for item in found] == [0]
    assert "has ended its program" in found[0].how


def test_who_fell_silent_is_late_and_not_those_it_last_waited_for() -> None:
    left = [peer(0, Stage.LEAVING, ranks=ALL, moved=20), peer(1, Stage.LEAVING, ranks=ALL, moved=20)]
    assert late_ranks(*left, peer(2, ranks=ALL, moved=20.5, heard=19.5)) == [2]
    assert late_ranks(*left, peer(2, ranks=ALL, moved=20.5, heard=11.9)) == [0, 1], "it waited long enough for them"
    assert late_ranks(*(replace(p, moved=NOW - 11) for p in left), peer(2, ranks=ALL, moved=11.5, heard=10.5)) == []


def test_ranks_that_leave_wait_for_each_other_without_being_needed() -> None:
    assert late_ranks(peer(0, Stage.LEAVING, ALL, moved=3), peer(1, Stage.RUN, None, moved=3)) == []
    assert late_ranks(peer(0, Stage.LEAVING, ALL, moved=11), peer(1, Stage.LEAVING, ALL, moved=11)) == []


def test_when_all_wait_all_are_late() -> None:
    everyone = [peer(0, ranks=(1,), moved=20), peer(1, ranks=(0,), moved=30), peer(2, ranks=ALL, moved=12.1)]
    assert late_ranks(*everyone) == [0, 1, 2]
    everyone[2] = peer(2, ranks=ALL, moved=11.9)
    assert late_ranks(*everyone) == [], "whoever began to wait last may still be on its way"


def test_ranks_that_have_ended_are_neither_late_nor_needed() -> None:
    assert late_ranks(peer(0, ended=True, heard=1e6, moved=1e6), peer(1, moved=1)) == []
    assert late_ranks(peer(0, ended=True), peer(1, Stage.LEAVING, ALL, moved=11)) == []
    assert find_late({}, LIMITS, NOW) == []


RANKS = st.one_of(st.none(), st.just(ALL), st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple))
PEERS = st.lists(
    st.tuples(st.sampled_from(Stage), RANKS, st.floats(0, 300), st.floats(0, 300), st.booleans()),
    min_size=1,
    max_size=6,
).map(lambda rows: [peer(rank, *row) for rank, row in enumerate(rows)])


@given(PEERS)
def test_who_is_late_has_given_cause(peers: list[Peer]) -> None:
    for item in find_late(job(*peers), LIMITS, NOW):
        assert not item.peer.ended
        assert item.seconds > min(LIMITS) / 3
        assert item.silent == (NOW - item.peer.heard > LIMITS.of(item.peer.stage))


@given(PEERS, st.floats(0.1, 1.0))
def test_a_warning_comes_before_the_verdict(peers: list[Peer], fraction: float) -> None:
    assert not find_late(job(*peers), LIMITS, NOW) or find_late(job(*peers), LIMITS, NOW, fraction)


@given(PEERS)
def test_nobody_is_late_when_all_have_just_moved(peers: list[Peer]) -> None:
    for p in peers:
        p.excuse(1e9, NOW)
    assert find_late(job(*peers), LIMITS, NOW) == []


@given(PEERS)
def test_a_hung_job_ends_within_its_longest_limit(peers: list[Peer]) -> None:
    """Time alone passes: some rank is late then, unless all that are left rest, have ended, or are about to end."""
    later = NOW + LIMITS.start + 1
    for p in peers:
        p.heard = later
    alive = [p for p in peers if not p.ended]
    needed = any(p.stage in (Stage.START, Stage.RUN) and (p.ranks is None or not p.ranks) for p in alive)
    assert not needed or find_late(job(*peers), LIMITS, later)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.floats(0, 100)), max_size=20))
def test_only_the_latest_news_count(news: list[tuple[int, int, float]]) -> None:
    listener, latest, moves, moved = peer(1), -1, -1, NOW
    for beat, moves_then, when in news:
        fresh = listener.take([1, beat, moves_then, 2, 5, "x", None, 3], when)
        assert fresh == (beat > latest)
        if fresh:
            latest = beat
            moved, moves = (when if moves_then != moves else moved), moves_then
            assert (listener.heard, listener.moves) == (when, moves)
            assert listener.moved == moved


def test_what_one_rank_does_arrives_at_another() -> None:
    does = Activity(Stage.RUN)
    does.work("computing a gradient", 12)
    does.ranks = (3, 4)
    me, there = peer(1), peer(1)
    me.beaten(does, 12345, NOW + 1)
    import json

    assert there.take(json.loads(json.dumps(me.news())), NOW + 2)
    assert (there.stage, there.step, there.operation) == (Stage.RUN, 12, "computing a gradient")
    assert (there.ranks, there.peak, there.moves) == ((3, 4), 12345, 1)
    assert (there.heard, there.moved) == (NOW + 2, NOW + 2)
    assert not there.take(me.news(), NOW + 3), "the same news by another way"
    me.beaten(does, 12345, NOW + 4)
    assert there.take(me.news(), NOW + 4)
    assert (there.heard, there.moved) == (NOW + 4, NOW + 2), "it is alive, but does not come on"


def test_an_excuse_moves_nobody_into_the_future() -> None:
    p = peer(1, heard=5, moved=50)
    p.excuse(20, NOW)
    assert (p.heard, p.moved) == (NOW, NOW - 30)


def test_the_sentence_names_who_is_late_who_waits_and_the_option() -> None:
    stuck = peer(1, moved=13)
    peers = job(peer(0, ranks=ALL, moved=13), stuck, peer(2, ranks=(1,), moved=12), peer(3, ranks=(0,), ended=True))
    told = describe_late(find_late(peers, LIMITS, NOW), peers, LIMITS)
    assert told == (
        "rank 1 on h1 does not come on in 'computing a gradient' at step 7 for 13 s; waiting for it: rank 0 in "
        "'waiting for servers' at step 7, rank 2 in 'waiting for servers' at step 7 (--stall-timeout 12)"
    )


def test_the_sentence_stays_short_in_a_large_job() -> None:
    peers = job(peer(0, Stage.START, moved=101), *(peer(r, Stage.START, ranks=ALL) for r in range(1, 100)))
    told = describe_late([Late(peers[0], 101, "does not come on")], peers, LIMITS)
    assert told.count("rank ") == 9
    assert told.endswith(", ... (--start-timeout 100)")
