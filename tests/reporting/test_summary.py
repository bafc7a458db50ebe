import dataclasses
import json

import numpy as np

from mpitrain.reporting.summary import WIDTH, Summary, render_summary, write_summary


def test_the_file_holds_every_field(tmp_path, make_summary):
    summary = make_summary(val_loss=np.float32(0.5), test_loss=float("nan"), servers=np.int32(1))
    path = write_summary(tmp_path, summary)
    assert path == tmp_path / "summary.json"
    read = json.loads(path.read_text())
    assert list(read) == [field.name for field in dataclasses.fields(Summary)]
    assert read["val_loss"] == 0.5
    assert read["test_loss"] == "nan"
    assert read["share"] == {"compute": 0.81, "exchange": 0.09, "waiting": 0.06, "update": 0.04}
    assert read["bytes_per_update"] == {"data": 26_197_072, "headers": 384}
    assert read["dropped"] == {"2": {"late": 3, "not finite": 1}}
    assert read["choices"] == {"compute": "flat", "jit_compile": False}


def test_the_text_says_what_matters(make_summary):
    assert render_summary(make_summary()).splitlines() == [
        "mode        ps-async, 1 server, 2 workers, 1 thread each",
        "model       cnn, 3,274,634 parameters, on mnist",
        "batch       100 per worker, 200 global",
        "trained     550 updates, 110,000 samples, 2.00 epochs",
        "loss        train 0.0123, validation 0.0341, test 0.0312",
        "accuracy    validation 0.9902, test 0.9911",
        "speed       3,650 samples/s, 1,825 per worker (without start-up and 10 steps)",
        "time        62.1 s in all, 30.1 s training",
        "share       compute 81.0 %, exchange 9.0 %, waiting 6.0 %, update 4.0 %",
        "sent        26.20 MB of data and 384 B of headers per update",
        "memory      at most 170.00 MB of a server, 750.00 MB of a worker",
        "staleness   mean 1.02, max 4, 0: 1.8 %, 1: 94.5 %, 2-3: 2.7 %, 4-7: 0.9 %",
        "applied     worker 1: 310, worker 2: 240, the fastest at most 7 steps ahead",
        "dropped     worker 2: 3 late, 1 not finite",
        "chosen      compute=flat, jit_compile=False",
        "versions    mpitrain 0.1.0, tensorflow 2.21.0",
    ]


def test_what_does_not_apply_is_left_out(make_summary):
    text = render_summary(
        make_summary(
            mode="allreduce",
            servers=0,
            val_loss=None,
            val_accuracy=None,
            test_accuracy=None,
            samples_per_second=None,
            samples_per_second_per_worker=None,
            staleness_mean=None,
            staleness_max=None,
            staleness={},
            staleness_by_worker={},
            clock_gap_max=None,
            dropped={},
            choices={},
            peak_memory_by_role={"worker": 750_000_000},
        )
    )
    for word in ("server", "None", "accuracy", "validation", "staleness", "applied", "dropped", "chosen"):
        assert word not in text
    assert "loss        train 0.0123, test 0.0312" in text
    assert "not measured" in text


def test_long_texts_wrap_within_the_width_and_stay_plain(make_summary):
    text = render_summary(make_summary(choices={f"choice_{n}": "value" for n in range(30)}))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.isascii()
    assert text.isprintable() or set(text) - {"\n"} == {c for c in text if c.isprintable()}
    assert "\n            choice_" in text
    assert text.count("=value") == 30
