"""Fetching from mirrors: bad, dead, silent and slow ones."""

from __future__ import annotations

import gzip
import socket
import threading
import time

import pytest

from mpitrain.data.fetch import Limits
from mpitrain.data.sources import FILES

pytestmark = pytest.mark.usefixtures("no_way_out")


@pytest.fixture
def silent():
    """The URL of a server that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


DEFECTS = {
    "checksum": (
        gzip.compress(b"other"),
        f"{FILES[1]} has the SHA-256 d9298a10d1b0735837dc4bd85dac641b0f3cef27",
    ),
    "broken off": (gzip.compress(b"other")[:-3], f"{FILES[1]}.gz is no whole gzip stream"),
    "absent": (None, f"{FILES[1]}.gz did not arrive whole, HTTPError"),
}


@pytest.mark.parametrize(("content", "says"), DEFECTS.values(), ids=DEFECTS)
def test_a_bad_file_is_never_kept_and_named(content, says, fetch, mirror, source, sentence, tmp_path) -> None:
    bad = mirror({f"{FILES[1]}.gz": content})
    text = sentence(fetch, source(bad))
    assert f"{bad.url}: {says}" in text
    assert "--data-dir" in text
    assert "--dataset mnist-sample" in text
    assert [path.name for path in (tmp_path / "cache" / "mnist").iterdir()] == [FILES[0]]


@pytest.mark.parametrize(("content", "says"), DEFECTS.values(), ids=DEFECTS)
def test_another_mirror_gives_what_one_lacks(content, says, fetch, mirror, source, check_whole) -> None:
    bad, good = mirror({f"{FILES[1]}.gz": content}), mirror()
    first_asked = threading.Event()
    # The good mirror answers after the bad one has been tried.
    bad.before = lambda request: first_asked.set() if request.startswith("GET") else None
    good.before = lambda request: first_asked.wait(20)
    check_whole(fetch(source(bad, good), Limits(reach=20)))
    assert any(says in line for line in fetch.said)
    assert good.gets == 3


def test_a_dead_and_a_silent_mirror_do_not_matter(fetch, mirror, source, closed, silent, check_whole) -> None:
    check_whole(fetch(source(closed, silent, mirror())))


def test_a_slow_download_is_not_cut_off(fetch, mirror, source, check_whole) -> None:
    slow = mirror()

    def drip(content: bytes):
        for start in range(0, len(content), 100):
            time.sleep(fetch.limits.reach / 8)
            yield content[start : start + 100]

    slow.piecewise = drip
    start = time.monotonic()
    check_whole(fetch(source(slow)))
    assert time.monotonic() - start > fetch.limits.reach


def test_a_download_that_stands_still_is_given_up(fetch, mirror, source, monkeypatch, sentence) -> None:
    monkeypatch.setattr("mpitrain.data.mirrors.STALL", 0.2)
    stuck, over = mirror(), threading.Event()
    stuck.before = lambda request: over.wait(60) if request.startswith("GET") else None
    text = sentence(fetch, source(stuck))
    over.set()
    assert f"{stuck.url}: {FILES[0]}.gz did not arrive whole, ReadTimeout" in text


def test_without_any_way_the_sentence_says_each_fault(fetch, source, mirror, closed, silent, sentence) -> None:
    empty = mirror(dict.fromkeys(f"{name}.gz" for name in FILES))
    text = sentence(fetch, source(closed, silent, empty))
    assert f"{closed}: cannot be reached, ConnectionError" in text
    # These two mirrors would be silent for ever: that the call ends shows that the limit holds.
    assert f"{silent}: does not answer within 1 s" in text
    assert f"{empty.url}: does not have {FILES[3]}.gz" in text
    assert "npm: npm is not on PATH" in text
    assert "give a folder with its four IDX files as --data-dir, or use --dataset mnist-sample" in text


def test_a_name_server_that_never_answers_is_not_waited_for(fetch, source, monkeypatch, sentence) -> None:
    over = threading.Event()

    def resolve(*args: object, **kwargs: object) -> None:
        over.wait(60)
        raise socket.gaierror("nothing")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    text = sentence(fetch, source("http://mirror-1.invalid", "http://mirror-2.invalid"))
    over.set()
    assert "http://mirror-1.invalid: does not answer within 1 s" in text
    assert "http://mirror-2.invalid: does not answer within 1 s" in text
