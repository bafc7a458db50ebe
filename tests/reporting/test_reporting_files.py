import enum
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpitrain.errors import InputError
from mpitrain.reporting.files import plain, write_json, write_whole


class Mode(str, enum.Enum):
    RING = "ring"


def test_numpy_and_python_values_become_plain():
    value = {
        3: np.float32(0.5),
        "n": np.int64(7),
        "yes": np.bool_(True),
        "list": np.arange(3),
        "where": Path("/tmp/x"),
        "mode": Mode.RING,
        "pair": (1, None),
    }
    assert plain(value) == {
        "3": 0.5,
        "n": 7,
        "yes": True,
        "list": [0, 1, 2],
        "where": "/tmp/x",
        "mode": "ring",
        "pair": [1, None],
    }
    assert type(plain(np.float64(0.1))) is float
    assert type(plain(Mode.RING)) is str


def test_not_finite_numbers_are_words_that_float_reads(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, [float("nan"), np.float32("inf"), np.array([-np.inf])])

    def refuse(word):
        raise AssertionError(f"{word} is not strict JSON")

    read = json.loads(path.read_text(), parse_constant=refuse)
    assert read == ["nan", "inf", ["-inf"]]
    assert np.isnan(float(read[0]))


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=50)
@given(TREES)
def test_plain_data_stays_as_it_is(tree):
    assert json.loads(json.dumps(plain(tree), allow_nan=False)) == tree


def test_data_without_a_plain_form_writes_nothing(tmp_path):
    with pytest.raises(TypeError, match="object"):
        write_json(tmp_path / "a.json", {"a": object()})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_in_the_middle_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, step, failure):
    path = tmp_path / "a.json"
    write_json(path, "old")

    def fail(*_):
        assert len(list(tmp_path.iterdir())) == 2  # the failure comes while the temporary file is there
        raise failure

    owner = os if step == "fsync" else type(path)
    monkeypatch.setattr(owner, step, fail)
    expected = InputError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        write_json(path, "new")
    assert list(tmp_path.iterdir()) == [path]
    assert json.loads(path.read_text()) == "old"
    if expected is InputError:
        assert str(path) in str(caught.value)
        assert "free some space" in str(caught.value)


def test_a_write_that_the_system_cuts_short_leaves_nothing(tmp_path):
    program = """
import resource, sys
from pathlib import Path
from mpitrain.errors import InputError
from mpitrain.reporting.files import write_whole
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_whole(Path(sys.argv[1]), b"x" * 5000)
except InputError as error:
    sys.exit(f"said: {error}")
"""
    path = tmp_path / "a.bin"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert f"said: cannot write {path} (File too large)" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path):
    program = """
import itertools, sys
from pathlib import Path
from mpitrain.reporting.files import write_whole
for number in itertools.count():
    write_whole(Path(sys.argv[1]), b"%09d" % number * 30_000)
"""
    path = tmp_path / "a.bin"
    writer = subprocess.Popen([sys.executable, "-c", program, path])
    while not path.exists():
        assert writer.poll() is None
        time.sleep(0.005)
    time.sleep(random.uniform(0, 0.05))
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    content = path.read_bytes()
    assert len(content) == 270_000
    assert content == content[:9] * 30_000


def test_the_file_gets_the_mode_that_the_umask_gives(tmp_path):
    path = tmp_path / "a.bin"
    old = os.umask(0o027)
    try:
        write_whole(path, b"x")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_folder_that_is_a_file_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"Not a directory.*--run-dir"):
        write_whole(tmp_path / "file" / "a.json", b"x")
