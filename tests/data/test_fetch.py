"""The cache: what is fetched into it, when, what is said where it cannot be, and what is read in its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpitrain.data import sources
from mpitrain.data.fetch import ensure_mnist, locate
from mpitrain.data.sources import FILES, MNIST, SAMPLE_FOLDER

pytestmark = pytest.mark.usefixtures("no_way_out")


def test_a_mirror_fills_the_cache_once(fetch, mirror, source, check_whole, tmp_path) -> None:
    good = mirror()
    folder = fetch(source(good))
    assert folder == tmp_path / "cache" / "mnist"
    check_whole(folder)
    assert f"Fetching mnist from {good.url} into {folder}" in fetch.said
    asked = good.asked.copy()
    assert fetch(source(good)) == folder
    assert good.asked == asked


def test_only_what_lacks_is_fetched(fetch, mirror, source, check_whole) -> None:
    good = mirror()
    folder = fetch(source(good))
    (folder / FILES[1]).unlink()
    fetch(source(good))
    check_whole(folder)
    assert good.asked[f"GET /{FILES[1]}.gz"] == 2
    assert good.gets == 5


def test_a_damaged_file_is_fetched_again_when_repairing(fetch, mirror, source, check_whole) -> None:
    good = mirror()
    folder = fetch(source(good))
    (folder / FILES[2]).write_bytes(b"damaged")
    fetch(source(good))
    assert (folder / FILES[2]).read_bytes() == b"damaged"
    fetch(source(good), repair=True)
    check_whole(folder)
    assert good.gets == 5


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


def test_locate_follows_the_order(write, source, mirror, monkeypatch, sentence, tmp_path, check_whole) -> None:
    good, said = mirror(), []
    monkeypatch.setenv("MPITRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sources.DATASETS, "mnist", source(good))
    folder = write()
    assert locate("mnist", folder, report=said.append) == folder
    assert locate("mnist-sample", report=said.append) == SAMPLE_FOLDER
    assert not good.asked
    check_whole(locate("mnist", report=said.append))
    assert good.gets == 4
    assert "the known ones are" in sentence(locate, "cifar", report=said.append)
    assert "leave one of them out" in sentence(locate, "mnist-sample", folder, report=said.append)
    assert "does not exist" in sentence(locate, "mnist", tmp_path / "absent", report=said.append)


def test_two_mirrors_over_https_are_known() -> None:
    assert len(MNIST.mirrors) >= 2
    assert all(mirror.startswith("https://") for mirror in MNIST.mirrors)
    assert list(MNIST.checksums) == list(FILES) == list(sources.SAMPLE.checksums)
