import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import pytest

from mpitrain.reporting.progress import Bar, Lines, Silent, make_progress
from mpitrain.reporting.stream import on_terminal


class Terminal:
    """A pseudo-terminal of ``columns`` columns, and what was written to it."""

    def __init__(self, columns):
        self.reader, writer = pty.openpty()
        ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream = open(writer, "w")  # noqa: SIM115

    def text(self):
        """What was written since the last call; it must fit the system's buffer (4 kB)."""
        self.stream.write("<read>")
        self.stream.flush()
        text = ""
        while not text.endswith("<read>"):
            text += os.read(self.reader, 4096).decode()
        return text

    def hang_up(self):
        os.close(self.reader)

    def close(self):
        self.stream.close()
        self.hang_up()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLUMNS", raising=False)
    terminal = Terminal(100)
    yield terminal
    terminal.close()


def test_lines_come_at_their_time_and_with_each_evaluation(make_record):
    stream, now = io.StringIO(), 0.0
    progress = make_progress(stream=stream, total_updates=1100, every=10, now=lambda: now)
    assert isinstance(progress, Lines)
    for second in range(0, 25, 4):
        now = second
        progress.train(make_record(step=100 + second))
    progress.evaluation(make_record(step=124, val_loss=0.05, val_accuracy=0.985))
    progress.note("saved model.keras")
    now = 26
    progress.train(make_record(step=126))
    progress.close()
    progress.close()
    steps = re.findall(r"step (\d+)/1100", stream.getvalue())
    assert steps == ["100", "112", "124", "124", "126"]
    lines = stream.getvalue().splitlines()
    assert lines[0] == ("step 100/1100  epoch 0.73  loss 0.0812  accuracy 0.9760  4,812 samples/s  lr 0.001")
    assert lines[3] == (
        "evaluation at step 124/1100  epoch 0.73  validation loss 0.0500  accuracy 0.9850  after 8.25 s"
    )
    assert lines[4] == "saved model.keras"


def test_what_is_not_known_is_left_out(make_record):
    stream = io.StringIO()
    progress = make_progress(stream=stream, total_samples=110_000, every=0)
    progress.train(make_record(accuracy=None, samples_per_second=None, staleness_mean=1.5))
    progress.train(make_record(loss=float("nan"), accuracy=None, samples_per_second=None))
    assert stream.getvalue().splitlines() == [
        "step 400  sample 40,000/110,000  epoch 0.73  loss 0.0812  lr 0.001  staleness 1.50",
        "step 400  sample 40,000/110,000  epoch 0.73  loss nan  lr 0.001",
    ]


@pytest.mark.parametrize("totals", [{}, {"total_updates": 1, "total_samples": 1}])
def test_exactly_one_total_is_needed(totals):
    with pytest.raises(ValueError, match="exactly one"):
        make_progress(stream=io.StringIO(), **totals)


def test_silence_writes_nothing(make_record, capsys):
    progress = Silent()
    progress.train(make_record())
    progress.evaluation(make_record(val_loss=1.0))
    progress.note("x")
    progress.close()
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_and_keeps_its_cursor(terminal, make_record):
    threads_before = len(os.listdir("/proc/self/task"))
    progress = make_progress(stream=terminal.stream, total_updates=800)
    assert isinstance(progress, Bar)
    progress.train(make_record())
    assert len(os.listdir("/proc/self/task")) == threads_before
    text = terminal.text()
    assert "step 400/800" in text
    assert "━" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    progress.evaluation(make_record(val_loss=0.05))
    progress.note("saved [bold]model.keras")
    progress.close()
    progress.note("afterwards")
    text = terminal.text()
    assert "validation loss 0.0500" in text
    assert "saved [bold]model.keras" in text
    assert "afterwards" in text


def test_the_bar_is_drawn_ten_times_a_second_and_at_the_end(terminal, make_record):
    now = 0.0
    progress = make_progress(stream=terminal.stream, total_updates=800, now=lambda: now)
    for step in range(100):
        now = step * 0.011
        progress.train(make_record(step=step))
    progress.close()
    drawn = [int(step) for step in re.findall(r"step (\d+)/800", terminal.text())]
    assert drawn[0] == 0
    assert drawn[-1] == 99
    assert len(set(drawn)) <= 12


def test_a_terminal_without_columns_is_not_looked_at(terminal):
    assert on_terminal(terminal.stream)
    hidden = Terminal(0)
    assert hidden.stream.isatty()
    assert not on_terminal(hidden.stream)
    assert isinstance(make_progress(stream=hidden.stream, total_updates=1), Lines)
    hidden.close()


def test_a_terminal_that_hangs_up_ends_nothing(make_record, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal(100)
    progress = make_progress(stream=terminal.stream, total_updates=800)
    terminal.hang_up()
    progress.train(make_record())
    progress.evaluation(make_record(val_loss=0.05))
    progress.note("x")
    progress.close()
    terminal.stream.close()


def test_a_closed_stream_ends_nothing(make_record):
    stream = io.StringIO()
    progress = make_progress(stream=stream, total_updates=800, every=0)
    stream.close()
    progress.train(make_record())
    progress.close()


def test_a_stream_that_cannot_spell_it_gets_ascii():
    raw = io.BytesIO()
    progress = make_progress(stream=io.TextIOWrapper(raw, encoding="ascii"), total_updates=800)
    progress.note("π = 3")
    assert raw.getvalue() == b"? = 3\n"


def test_a_closed_pipe_ends_nothing():
    program = """
import sys
from mpitrain.reporting.history import HistoryRecord
from mpitrain.reporting.progress import make_progress
record = HistoryRecord(kind="eval", step=1, epoch=0.0, time=0.0, loss=1.0, accuracy=None, learning_rate=0.1,
                       samples=1, val_loss=1.0)
progress = make_progress(stream=sys.stdout, total_updates=100_000, every=0)
for _ in range(20_000):
    progress.train(record)
    progress.evaluation(record)
progress.note("x")
progress.close()
print("the program's own words, into the same closed pipe")
print("reached the end", file=sys.stderr)
"""
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = run.stdout.readline()
    run.stdout.close()
    said = run.stderr.read()
    run.stderr.close()
    assert said == "reached the end\n"
    assert first.startswith("step 1/100000  epoch 0.00  loss 1.0000")
    assert run.wait() == 0
