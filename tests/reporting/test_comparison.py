import importlib.util
import io
import json
import struct
import subprocess
import sys

import pytest

from mpitrain.errors import InputError
from mpitrain.reporting.comparison import (
    Comparison,
    ModeResult,
    first_reaching,
    write_comparison,
)
from mpitrain.reporting.comparison_table import print_comparison
from mpitrain.reporting.plot import plot_comparison, require_matplotlib


@pytest.fixture
def comparison(make_record, make_summary):
    history = [make_record(step=1)] + [
        make_record(step=n, time=2.0 * n, samples=1000 * n, val_loss=1 / n, val_accuracy=1 - 0.1 / n)
        for n in range(1, 12)
    ]
    ring = make_summary(mode="allreduce", servers=0, workers=3, staleness_mean=None, staleness_max=None)
    results = [
        ModeResult.of(ring, history, target_accuracy=0.98),
        ModeResult.of(make_summary(), history, target_accuracy=0.98),
    ]
    return Comparison("cnn", "mnist", results)


def cells(text):
    """Row label → cells, from the plain table."""
    rows = [line.rsplit(None, 2) for line in text.splitlines()]
    return {row[0].strip(): row[1:] for row in rows if len(row) == 3}


def test_the_target_is_reached_by_the_first_evaluation_that_has_it(comparison, make_record, make_summary):
    result = comparison.results[0]
    assert (result.time_to_target, result.samples_to_target) == (10.0, 5000)
    assert first_reaching(result.history, 0.999) is None
    assert first_reaching([make_record(accuracy=1.0)], 0.5) is None  # training accuracy does not count
    never = ModeResult.of(make_summary(), result.history, 0.999)
    assert (never.time_to_target, never.samples_to_target) == (None, None)


def test_the_table_has_a_column_for_each_mode(comparison):
    stream = io.StringIO()
    print_comparison(comparison, stream)
    text = stream.getvalue()
    assert text.isascii()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 120
    table = cells(text)
    assert text.splitlines()[0] == "cnn on mnist"
    assert text.splitlines()[1].split() == ["allreduce", "ps-async"]
    assert table["workers"] == ["3", "2"]
    assert table["servers"] == ["-", "1"]
    assert table["throughput (samples/s)"] == ["3,650", "3,650"]
    assert table["time to target (s)"] == ["10.0", "10.0"]
    assert table["samples to target"] == ["5,000", "5,000"]
    assert table["compute (% of time)"] == ["81.0", "81.0"]
    assert table["data per update (MB)"] == ["26.197", "26.197"]
    assert table["headers per update (kB)"] == ["0.384", "0.384"]
    assert table["staleness, mean (updates)"] == ["-", "1.02"]
    assert table["staleness, max (updates)"] == ["-", "4"]
    assert "accuracy of 0.98;" in text


def test_seven_modes_fit_uncut(comparison, make_summary):
    modes = [ModeResult.of(make_summary(mode=f"ps-async-{n}"), [], 0.98) for n in range(7)]
    stream = io.StringIO()
    print_comparison(Comparison("cnn", "mnist", modes), stream)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 120
    headings = [line.split() for line in lines if line.split() and set(line.split()) <= {m.label for m in modes}]
    assert [label for line in headings for label in line] == [mode.label for mode in modes]


def test_the_file_holds_the_figures_and_the_evaluations(comparison, tmp_path):
    path = write_comparison(tmp_path, comparison)
    assert path == tmp_path / "compare.json"
    read = json.loads(path.read_text())
    assert (read["model"], read["dataset"]) == ("cnn", "mnist")
    first = read["results"][0]
    assert first["label"] == "allreduce"
    assert first["samples_to_target"] == 5000
    assert first["share"]["waiting"] == 0.06
    assert first["staleness_mean"] is None
    assert [record["step"] for record in first["history"]] == list(range(1, 12))
    assert {record["kind"] for record in first["history"]} == {"eval"}


def png_size(path):
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", header[16:])


def test_the_plot_is_a_whole_png(comparison, tmp_path):
    path = plot_comparison(tmp_path, comparison)
    assert path == tmp_path / "compare.png"
    assert png_size(path) == (1200, 960)
    assert list(tmp_path.iterdir()) == [path]


def test_losses_without_a_logarithm_are_plotted_too(make_record, make_summary, tmp_path):
    losses = [2.0, 0.0, float("nan"), -1.0, float("inf")]
    history = [make_record(step=n, time=n, samples=n, val_loss=loss) for n, loss in enumerate(losses)]
    results = [ModeResult.of(make_summary(), history, 0.9), ModeResult.of(make_summary(), [], 0.9)]
    assert png_size(plot_comparison(tmp_path, Comparison("own", "data", results))) == (1200, 960)


def test_a_missing_matplotlib_is_a_sentence(monkeypatch, comparison, tmp_path):
    require_matplotlib()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'mpitrain\[plot\]'"):
        require_matplotlib()
    with pytest.raises(InputError, match="matplotlib"):
        plot_comparison(tmp_path, comparison)
    assert list(tmp_path.iterdir()) == []


def test_importing_the_room_imports_nothing_heavy():
    names = [
        "comparison",
        "files",
        "history",
        "plot",
        "progress",
        "rundir",
        "stream",
        "summary",
        "throughput",
    ]
    program = f"""
import importlib, sys
for name in {names}:
    importlib.import_module("mpitrain.reporting." + name)
print([name for name in ("matplotlib", "tensorflow", "keras", "mpi4py") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
