"""The history of a run, a line for each record: ``history.jsonl``, and the same as ``history.csv``."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mpitrain.errors import InputError
from mpitrain.reporting.files import plain, write_whole, writing

_DECIMALS = {"epoch": 2, "time": 4, "samples_per_second": 1}
_NOT_FINITE = ("nan", "inf", "-inf")


@dataclass(frozen=True, kw_only=True)
class HistoryRecord:
    """What is known after ``step`` updates.

    Args:
        kind: "train", or "eval" for a record that carries an evaluation.
        step: updates applied.
        epoch: passes over the data so far; stored with 2 decimals.
        time: training clock in seconds, evaluation left out; stored with 4 decimals.
        loss: mean training loss since the record before.
        accuracy: mean training accuracy since the record before; None for a model without one.
        learning_rate: the effective one, after scaling, warm-up and schedule.
        samples: samples handed out so far.
        samples_per_second: of all workers together since the record before; None while not measurable.
        staleness_mean: versions between pull and push; None outside servers.
        staleness_max: None outside servers.
        dropped: of each worker, in rank order, gradients dropped so far; None outside servers.
        val_loss: on the validation set; None unless ``kind`` is "eval".
        val_accuracy: on the validation set; None unless ``kind`` is "eval".
    """

    kind: Literal["train", "eval"]
    step: int
    epoch: float
    time: float
    loss: float | None
    accuracy: float | None
    learning_rate: float
    samples: int
    samples_per_second: float | None = None
    staleness_mean: float | None = None
    staleness_max: int | None = None
    dropped: tuple[int, ...] | None = None
    val_loss: float | None = None
    val_accuracy: float | None = None


HISTORY = "history.jsonl"
COLUMNS = tuple(field.name for field in dataclasses.fields(HistoryRecord))


class History(NamedTuple):
    """What ``read_history`` found."""

    records: list[HistoryRecord]
    half_written: str | None
    """A sentence that names the last line when a kill cut it short; it is not among ``records``."""


class HistoryWriter:
    """Appends records to the two history files of ``run_dir``: each at once, to both or to none.

    A line that a killed run left half-written is cut off first, so that a resumed run adds whole ones.

    Raises:
        InputError: here and from every method, when a file cannot be written.
    """

    def __init__(self, run_dir: Path) -> None:
        self._json_path, self._csv_path = run_dir / HISTORY, run_dir / "history.csv"
        self._json, self._csv = _open_lines(self._json_path), _open_lines(self._csv_path)
        if not self._csv.tell():
            _write_line(self._csv, self._csv_path, ",".join(COLUMNS))

    def write(self, record: HistoryRecord) -> None:
        """Append one record to both files."""
        files = (self._json, self._json_path), (self._csv, self._csv_path)
        ends = [file.seek(0, os.SEEK_END) for file, _ in files]
        try:
            for (file, path), line in zip(files, _lines(record), strict=True):
                _write_line(file, path, line)
        except InputError:
            for (file, _), end in zip(files, ends, strict=True):
                with suppress(OSError):
                    file.truncate(end)
            raise

    def sync(self) -> None:
        """Return when what was written would outlast a power cut."""
        for file, path in ((self._json, self._json_path), (self._csv, self._csv_path)):
            with writing(path):
                os.fsync(file.fileno())

    def close(self) -> None:
        """Close both files; closing twice is fine."""
        for file, path in ((self._json, self._json_path), (self._csv, self._csv_path)):
            with writing(path):
                file.close()

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class PatientHistory:
    """A history that may not be written for a while: records wait in memory, and are written with the next one.

    Args:
        run_dir: see :class:`HistoryWriter`.
        warn: hears once of each time that begins.

    Raises:
        InputError: here and from :meth:`close`, when a file cannot be written.
    """

    def __init__(self, run_dir: Path, warn: Callable[[str], None]) -> None:
        self._writer, self._warn = HistoryWriter(run_dir), warn
        self._waiting: list[HistoryRecord] = []
        self._warned = False

    def write(self, record: HistoryRecord) -> None:
        """Append one record, now or later."""
        self._waiting.append(record)
        try:
            self._catch_up()
        except InputError as error:
            if not self._warned:
                self._warn(f"{error}; what cannot be written is kept until it can")
            self._warned = True

    def sync(self) -> None:
        """Return when all records would outlast a power cut; another thread may go on writing meanwhile.

        Raises:
            InputError: some could not be written.
        """
        if self._warned:
            raise InputError(f"{len(self._waiting)} records of the history are not written yet")
        self._writer.sync()

    def close(self) -> None:
        """Write what is left, and close the files."""
        self._catch_up()
        self._writer.close()

    def _catch_up(self) -> None:
        while self._waiting:
            self._writer.write(self._waiting[0])
            del self._waiting[0]
        self._warned = False


def write_history(run_dir: Path, records: Iterable[HistoryRecord]) -> None:
    """Replace the two history files of ``run_dir`` by ones that hold ``records``.

    Raises:
        InputError: when a file cannot be written.
    """
    lines = [_lines(record) for record in records]
    texts = [as_json for as_json, _ in lines], [",".join(COLUMNS), *(as_csv for _, as_csv in lines)]
    for name, text in zip((HISTORY, "history.csv"), texts, strict=True):
        write_whole(run_dir / name, "".join(f"{line}\n" for line in text).encode())


def read_history(path: Path) -> History:
    """The records of a ``history.jsonl``, with NaN and infinities as floats again.

    Raises:
        InputError: when the file cannot be read, or a line other than a half-written last one is no record.
    """
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"cannot read the history {path} ({error.strerror}): name a run's history.jsonl") from error
    records = [_record(path, number, line) for number, line in enumerate(lines, 1)]
    half = f"line {len(lines) + 1} of {path} is half-written (its run was killed) and left out" if rest else None
    return History(records, half)


def _lines(record: HistoryRecord) -> tuple[str, str]:
    """A record as a line of each file."""
    row = _row(record)
    return json.dumps(row, allow_nan=False), ",".join(_cell(value) for value in row.values())


def _row(record: HistoryRecord) -> dict[str, Any]:
    row = plain(record)
    for name, decimals in _DECIMALS.items():
        if isinstance(row[name], float):
            row[name] = round(row[name], decimals)
    return row


def _cell(value: Any) -> str:
    """What stands between two commas; several numbers are apart by spaces."""
    return "" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _record(path: Path, number: int, line: bytes) -> HistoryRecord:
    try:
        row = json.loads(line)
        fields: dict[str, Any] = {k: float(v) if v in _NOT_FINITE else v for k, v in row.items()}
        if fields.get("dropped") is not None:
            fields["dropped"] = tuple(fields["dropped"])
        return HistoryRecord(**fields)
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"line {number} of {path} is no history record ({error}): repair or remove it") from error


def _open_lines(path: Path) -> FileIO:
    """Open for appending, behind the last whole line."""
    with writing(path):
        file = path.open("a+b", buffering=0)
        file.seek(0)
        file.truncate(file.readall().rfind(b"\n") + 1)
        file.seek(0, 2)
    return file


def _write_line(file: FileIO, path: Path, line: str) -> None:
    left = memoryview(f"{line}\n".encode())
    with writing(path):
        while left:
            left = left[file.write(left) :]
