"""How watchdogs talk: who talks with whom, and what a neighbour that misbehaves can do to the talk."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.cluster.gossip import Gossip, neighbours

NODES = st.lists(st.integers(0, 3), min_size=1, max_size=12)
"""Which node each rank is on, in any order."""


def leaders_of(nodes: list[int]) -> tuple[int, ...]:
    return tuple(nodes.index(node) for node in nodes)


def reached(start: int, leaders: tuple[int, ...], without: int) -> set[int]:
    """Whom news of ``start`` reach while one rank passes nothing on."""
    found, ahead = {start}, [start]
    while ahead:
        for other in neighbours(leaders, ahead.pop()) - found:
            found.add(other)
            if other != without:
                ahead.append(other)
    return found


@given(NODES)
def test_whom_i_hear_hears_me(nodes: list[int]) -> None:
    leaders = leaders_of(nodes)
    for rank in range(len(nodes)):
        assert rank not in neighbours(leaders, rank)
        for other in neighbours(leaders, rank):
            assert rank in neighbours(leaders, other)


@given(NODES)
def test_news_reach_everybody_whoever_falls_silent(nodes: list[int]) -> None:
    leaders, everyone = leaders_of(nodes), set(range(len(nodes)))
    for start in everyone:
        assert reached(start, leaders, without=-1) == everyone
        for silent in everyone - {start}:
            assert reached(start, leaders, silent) == everyone


def test_a_large_job_needs_few_sockets() -> None:
    leaders = tuple(32 * node for node in range(16) for _ in range(32))
    counts = [len(neighbours(leaders, rank)) for rank in range(len(leaders))]
    assert max(counts) == 31 + 2 * 15
    assert counts.count(2) == 16 * 30


class Talker:
    """One rank's end, and what it heard."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.heard: list[Any] = []
        self.latest: dict[int, int] = {}
        self.lost: list[int] = []
        self.gossip = Gossip(self.heard.append, self._news, self.lost.append)

    def _news(self, record: list[Any]) -> bool:
        fresh = bool(record[1] > self.latest.get(record[0], -1))
        self.latest[record[0]] = max(record[1], self.latest.get(record[0], -1))
        return fresh


def record(rank: int, beat: int, operation: str = "x") -> list[Any]:
    return [rank, beat, 1, 2, 5, operation, None, 9]


Chain = Callable[..., list[Talker]]


@pytest.fixture
def joined() -> Iterator[Chain]:
    """Talkers, joined in the given pairs."""
    made: list[Talker] = []

    def join(*pairs: tuple[int, int]) -> list[Talker]:
        made.extend(Talker(rank) for rank in range(1 + max(map(max, pairs))))
        for a, b in pairs:
            one, other = socket.socketpair()
            made[a].gossip.connect({b: one})
            made[b].gossip.connect({a: other})
        return made

    yield join
    for talker in made:
        talker.gossip.close()


@pytest.fixture
def stranger() -> Iterator[tuple[Talker, socket.socket]]:
    """A talker, and the other end of its only socket in the hands of the test."""
    talker = Talker(0)
    mine, other = socket.socketpair()
    talker.gossip.connect({1: mine})
    yield talker, other
    other.close()
    talker.gossip.close()


def listen_all(talkers: list[Talker], rounds: int = 6) -> None:
    for _ in range(rounds):
        for talker in talkers:
            talker.gossip.listen(0)


def test_a_message_reaches_all_once_by_every_way(joined: Chain) -> None:
    ring = joined((0, 1), (1, 2), (2, 3), (3, 0), (0, 2))
    ring[1].gossip.tell(["lost", 7, False])
    ring[3].gossip.tell(["lost", 7, False])
    listen_all(ring)
    assert [talker.heard for talker in ring] == [[["lost", 7, False]], [], [["lost", 7, False]], []]
    ring[0].gossip.tell(["lost", 8, False])
    listen_all(ring)
    assert [len(talker.heard) for talker in ring] == [1, 1, 2, 1]


def test_news_are_passed_on_with_the_next_heartbeat(joined: Chain) -> None:
    chain = joined((0, 1), (1, 2))
    chain[0].gossip.beat(record(0, 4))
    listen_all(chain)
    assert chain[2].latest == {}
    chain[1].gossip.beat(record(1, 1))
    listen_all(chain)
    assert chain[2].latest == {0: 4, 1: 1}
    assert chain[0].latest == {1: 1}, "nobody is told its own news"


def test_half_lines_wait_for_their_other_half(stranger: tuple[Talker, socket.socket]) -> None:
    talker, other = stranger
    line = json.dumps(["bye", 1]).encode() + b"\n"
    for byte in range(len(line) - 1):
        other.sendall(line[byte : byte + 1])
        talker.gossip.listen(0)
    assert talker.heard == []
    other.sendall(line[-1:] + b'["stop","al')
    talker.gossip.listen(0)
    assert talker.heard == [["bye", 1]]
    other.sendall(b'l","SIGUSR1"]\n')
    talker.gossip.listen(0)
    assert talker.heard[1:] == [["stop", "all", "SIGUSR1"]]


@given(st.lists(st.one_of(st.binary(max_size=50), st.sampled_from([
    b"{}", b"[]", b"3", b"null", b'"news"', b'["news"]', b'["news",3,null,[],[1],{}]', b"[" * 5000, b'["news",[1,2]]',
    b'["news",["a",1,1,2,5,"x",null,9]]', b'["news",[1,1,1,99,5,"x",null,9]]', b'["news",[1,1,1,2,5,"x",7,9]]',
    b'[["lost"],1]', b'["lost",[1]]', b'["lost",{}]', b'["lost"]', b"\xff\xfe[", b"NaN", b"1e999999",
]))))  # fmt: skip
def test_rubbish_is_passed_over(lines: list[bytes]) -> None:
    talker = Talker(0)
    mine, other = socket.socketpair()
    talker.gossip.connect({1: mine})
    for line in [*lines, json.dumps(["news", record(1, 3)]).encode(), b'["bye",1]']:
        other.sendall(line + b"\n")
        talker.gossip.listen(0)
    assert talker.heard[-1] == ["bye", 1]
    assert talker.latest[1] == 3
    assert talker.lost == []
    other.close()
    talker.gossip.close()


def test_the_end_of_a_socket_is_told_once_after_all_that_came_before_it(
    stranger: tuple[Talker, socket.socket],
) -> None:
    talker, other = stranger
    other.sendall(b'["bye",1]\n["lo')
    other.close()
    for _ in range(3):
        talker.gossip.listen(0)
    assert (talker.heard, talker.lost) == ([["bye", 1]], [1])
    talker.gossip.tell(["lost", 1, False])
    talker.gossip.beat(record(0, 1))
    talker.gossip.flush(0.1)


def test_a_neighbour_that_does_not_read_blocks_nobody_and_gets_the_latest_news(
    stranger: tuple[Talker, socket.socket],
) -> None:
    talker, other = stranger
    long, beats = "x" * 10_000, 2000
    begun = time.monotonic()
    for beat in range(beats):
        talker.gossip.beat(record(0, beat, long))
    talker.gossip.tell(["lost", 5, False])
    talker.gossip.flush(0.2)
    assert time.monotonic() - begun < 60, "20 MB for somebody who does not listen"
    other.setblocking(False)
    came = b""
    for _ in range(1000):
        with contextlib.suppress(BlockingIOError):
            while chunk := other.recv(1 << 16):
                came += chunk
        talker.gossip.flush()
        talker.gossip.beat(record(0, beats))
    lines = [json.loads(line) for line in came.splitlines()]
    seen = [r[1] for line in lines if line[0] == "news" for r in line[1:]]
    assert seen == sorted(seen)
    assert len(came) < 2_000_000, "what grew old on the way is not sent"
    assert ["lost", 5, False] in lines
    assert seen[-1] == beats, "after that it hears how things stand now"


def test_other_sockets_are_heard_beside() -> None:
    talker, called = Talker(0), []
    mine, other = socket.socketpair()
    talker.gossip.watch(mine, lambda: called.append(mine.recv(10)))
    other.send(b"\x0f")
    talker.gossip.listen(1)
    assert called == [b"\x0f"]
    talker.gossip.listen(0)
    assert called == [b"\x0f"]
    talker.gossip.close()
    mine.close()
    other.close()
