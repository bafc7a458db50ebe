import errno
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.errors import InputError
from mpitrain.reporting.history import HistoryWriter
from mpitrain.reporting.rundir import _toml, create_run_directory, write_config

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_the_default_name_says_when_and_what(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_dir = create_run_directory(None, "ps-sync", "my.models:make")
    assert run_dir.parent == Path("runs")
    assert re.fullmatch(r"\d{8}T\d{6}Z-ps-sync-my\.models-make", run_dir.name)
    assert list(run_dir.iterdir()) == []


def test_runs_of_one_second_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [create_run_directory(None, "allreduce", "cnn") for _ in range(20)]
    assert len(set(made)) == 20
    assert all(run_dir.is_dir() for run_dir in made)


def test_a_given_path_is_made_with_its_parents(tmp_path):
    path = tmp_path / "a" / "b"
    assert create_run_directory(str(path), "allreduce", "cnn") == path
    assert path.is_dir()


def test_an_existing_folder_without_a_run_is_used_and_kept(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert create_run_directory(tmp_path, "allreduce", "cnn") == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["summary.json", "history.jsonl", "compare.json"])
def test_a_folder_with_a_run_is_refused(tmp_path, name):
    (tmp_path / name).write_text("")
    with pytest.raises(InputError, match=rf"{tmp_path} holds a run \({name}\): choose another --run-dir or delete"):
        create_run_directory(tmp_path, "allreduce", "cnn")


def test_a_run_that_has_only_begun_is_a_run(tmp_path):
    HistoryWriter(tmp_path).close()
    with pytest.raises(InputError, match="holds a run"):
        create_run_directory(tmp_path, "allreduce", "cnn")


def test_a_path_that_is_a_file_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file is a file: choose another --run-dir"):
        create_run_directory(tmp_path / "file", "allreduce", "cnn")


def test_a_path_below_a_file_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/run \(Not a directory\): choose another --run-dir"):
        create_run_directory(tmp_path / "file" / "run", "allreduce", "cnn")


@pytest.mark.parametrize("what", ["a file", "a link to nothing"])
def test_a_default_folder_that_cannot_be_is_a_sentence(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    if what == "a file":
        Path("runs").write_text("")
    else:
        Path("runs").symlink_to("nowhere")
    with pytest.raises(InputError, match="cannot write runs"):
        create_run_directory(None, "allreduce", "cnn")


def test_a_file_system_that_takes_no_files_is_a_sentence():
    with pytest.raises(InputError, match=r"cannot write /proc/.*--run-dir"):
        create_run_directory("/proc/sys", "allreduce", "cnn")


def test_a_full_disk_is_noticed_before_the_training(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"No space left on device.*free some space"):
        create_run_directory(tmp_path, "allreduce", "cnn")
    assert list(tmp_path.iterdir()) == []


def test_the_configuration_comes_back_from_both_files(tmp_path):
    config = {
        "train-steps": 100,
        "learning_rate": 1e-05,
        "mode": 'ring "a"\n\\',
        "allow_gpu": False,
        "data_dir": Path("/data/π"),
        "epochs": None,
        "seed": np.int64(3),
        "momentum": np.float64(0.9),
        "limit": float("inf"),
    }
    write_config(tmp_path, config)
    from_json = json.loads((tmp_path / "config.json").read_text())
    assert from_json["epochs"] is None
    assert from_json["train-steps"] == 100
    from_toml = tomllib.loads((tmp_path / "config.toml").read_text())
    assert from_toml == {
        "train_steps": 100,
        "learning_rate": 1e-05,
        "mode": 'ring "a"\n\\',
        "allow_gpu": False,
        "data_dir": "/data/π",
        "seed": 3,
        "momentum": 0.9,
        "limit": float("inf"),
    }
    assert type(from_toml["allow_gpu"]) is bool


@given(st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans())
def test_every_value_survives_toml(value):
    read = tomllib.loads(f"x = {_toml('x', value)}\n")["x"]
    assert read == value
    assert type(read) is type(value)


def test_a_list_has_no_place_in_the_configuration(tmp_path):
    with pytest.raises(TypeError, match=r"modes: .*not list"):
        write_config(tmp_path, {"modes": [1, 2]})
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_not_utf8_is_a_sentence(tmp_path):
    with pytest.raises(InputError, match=r"data_dir.*not UTF-8"):
        write_config(tmp_path, {"data_dir": b"/data/\xff".decode(errors="surrogateescape")})
    assert list(tmp_path.iterdir()) == []
