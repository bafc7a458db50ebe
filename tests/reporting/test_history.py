import csv
import json
import math
import resource
import subprocess
import sys

import numpy as np
import pytest

from mpitrain.errors import InputError
from mpitrain.reporting.history import COLUMNS, HistoryWriter, read_history


def write(run_dir, *records):
    with HistoryWriter(run_dir) as writer:
        for record in records:
            writer.write(record)
    return run_dir / "history.jsonl"


def test_records_come_back_as_they_went(tmp_path, make_record):
    records = [
        make_record(),
        make_record(step=500, accuracy=None, staleness_mean=1.5, staleness_max=4, dropped=(0, 13)),
        make_record(step=550, val_loss=0.05, val_accuracy=0.985),
    ]
    assert read_history(write(tmp_path, *records)) == (records, None)


def test_csv_has_the_same_columns_and_values(tmp_path, make_record):
    jsonl = write(tmp_path, make_record(), make_record(val_loss=0.05, loss=float("inf")))
    rows = list(csv.DictReader((tmp_path / "history.csv").open()))
    for row, line in zip(rows, jsonl.read_text().splitlines(), strict=True):
        assert row == {key: "" if value is None else str(value) for key, value in json.loads(line).items()}
        assert tuple(row) == COLUMNS
    assert rows[0]["val_loss"] == rows[0]["dropped"] == ""
    assert rows[1]["loss"] == "inf"


def test_several_numbers_share_a_cell(tmp_path, make_record):
    write(tmp_path, make_record(dropped=(0, 13, 2)))
    (row,) = csv.DictReader((tmp_path / "history.csv").open())
    assert row["dropped"] == "0 13 2"


def test_not_finite_and_numpy_numbers(tmp_path, make_record):
    path = write(tmp_path, make_record(loss=np.float32("nan"), val_loss=float("-inf"), step=np.int64(3)))
    (record,), _ = read_history(path)
    assert math.isnan(record.loss)
    assert record.val_loss == -math.inf
    assert record.step == 3
    assert "NaN" not in path.read_text()


def test_epoch_time_and_rate_are_rounded(tmp_path, make_record):
    path = write(tmp_path, make_record(epoch=1 / 3, time=1 / 3, samples_per_second=1 / 3, loss=1 / 3))
    (record,), _ = read_history(path)
    assert (record.epoch, record.time, record.samples_per_second, record.loss) == (0.33, 0.3333, 0.3, 1 / 3)


def test_each_line_is_there_as_soon_as_it_is_written(tmp_path, make_record):
    with HistoryWriter(tmp_path) as writer:
        assert (tmp_path / "history.csv").read_text() == ",".join(COLUMNS) + "\n"
        for number in range(3):
            writer.write(make_record(step=number))
            assert [r.step for r in read_history(tmp_path / "history.jsonl").records] == list(range(number + 1))
            assert len((tmp_path / "history.csv").read_text().splitlines()) == number + 2


def test_a_half_written_last_line_is_named_and_left_out(tmp_path, make_record):
    path = write(tmp_path, make_record(step=1), make_record(step=2))
    whole = path.read_bytes()
    first_line = whole.index(b"\n") + 1
    for cut in range(first_line + 1, len(whole)):
        path.write_bytes(whole[:cut])
        history = read_history(path)
        assert [record.step for record in history.records] == [1]
        assert history.half_written.startswith(f"line 2 of {path} is half-written")


def test_a_new_writer_cuts_half_lines_off_and_goes_on(tmp_path, make_record):
    write(tmp_path, make_record(step=1), make_record(step=2))
    for name in ("history.jsonl", "history.csv"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-5])
    path = write(tmp_path, make_record(step=3))
    history = read_history(path)
    assert [record.step for record in history.records] == [1, 3]
    assert history.half_written is None
    assert [row["step"] for row in csv.DictReader((tmp_path / "history.csv").open())] == ["1", "3"]


@pytest.mark.parametrize("broken", ['{"kind": "tr', "[1]", '{"kind": "train"}', ""])
def test_a_broken_line_in_the_middle_is_a_sentence(tmp_path, make_record, broken):
    path = write(tmp_path, make_record(), make_record())
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{broken}\n{second}\n")
    with pytest.raises(InputError, match=rf"line 2 of {path}"):
        read_history(path)


def test_a_missing_history_is_a_sentence(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the history .*history\.jsonl"):
        read_history(tmp_path / "history.jsonl")


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*--run-dir"):
        HistoryWriter(tmp_path / "none")


def test_a_full_disk_is_a_sentence(tmp_path):
    program = f"""
import resource, sys
from pathlib import Path
from mpitrain.errors import InputError
from mpitrain.reporting.history import HistoryRecord, HistoryWriter
record = HistoryRecord(kind="train", step=1, epoch=0.0, time=0.0, loss=1.0, accuracy=None,
                       learning_rate=0.1, samples=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, {resource.RLIM_INFINITY}))
try:
    writer = HistoryWriter(Path(sys.argv[1]))
    while True:
        writer.write(record)
except InputError as error:
    sys.exit(f"said: {{error}}")
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True)
    assert f"said: cannot write {tmp_path}/history.jsonl (File too large)" in done.stderr
    history = read_history(tmp_path / "history.jsonl")
    assert len(history.records) >= 3
