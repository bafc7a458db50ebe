"""Several seeds of a contender taken together, and what the verdict says of them."""

from __future__ import annotations

import io

import pytest

from mpitrain.reporting.comparison import Comparison, ModeResult
from mpitrain.reporting.comparison_table import print_comparison
from mpitrain.reporting.standings import Spread, standings, verdict


@pytest.fixture
def runs(make_record, make_summary):
    """Runs of a label, one for each time to the target (None: not reached) and final accuracy."""

    def make(label, times, accuracies):
        made = []
        for seed, (time, accuracy) in enumerate(zip(times, accuracies, strict=True)):
            history = [] if time is None else [make_record(step=7, time=time, val_loss=0.1, val_accuracy=0.97)]
            summary = make_summary(val_accuracy=accuracy)
            made.append(ModeResult.of(summary, history, 0.97, label, seed))
        return made

    return make


def test_a_spread_is_a_mean_and_a_deviation():
    spread = Spread.over([1.0, None, 3.0])
    assert spread is not None
    assert (spread.mean, spread.runs, spread.of) == (2.0, 2, 3)
    assert spread.deviation == pytest.approx(2**0.5)
    single = Spread.over([4.0])
    assert single is not None
    assert single.deviation is None
    assert single.apart(spread) is None
    assert Spread.over([None]) is None
    one, other = Spread(1.0, 0.1, 3, 3), Spread(1.2, 0.1, 3, 3)
    assert one.apart(other) is True
    assert one.apart(Spread(1.1, 0.1, 3, 3)) is False


def test_runs_are_taken_together_by_label(runs):
    a, b = runs("a", (1, 2), (0.98, 0.98)), runs("b", (1, 2), (0.98, 0.98))
    assert [(s.label, len(s.runs)) for s in standings([a[0], b[0], a[1], b[1]])] == [("a", 2), ("b", 2)]


def test_the_verdict_tells_real_differences_from_chance(runs):
    results = [
        *runs("fast", (1.0, 1.1, 1.2), (0.975, 0.976, 0.974)),
        *runs("as-fast", (1.1, 1.0, 1.3), (0.975, 0.977, 0.973)),
        *runs("slow", (3.0, 3.1, 3.2), (0.971, 0.971, 0.970)),
        *runs("short", (1.0, None, None), (0.98, 0.96, 0.95)),
    ]
    assert verdict(results) == [
        "fast reached a validation accuracy of 0.97 first: after 1.10 s (mean of 3 seeds).",
        "  slow follows by 2.00 s, beyond the spread of seeds (0.16 s).",
        "  Not to be told apart from it, within the spread of seeds: as-fast.",
        "short reached it with 1 of 3 seeds.",
        "fast ended most accurate: 0.9750 (mean of 3 seeds).",
        "  slow follows by 0.0043, beyond the spread of seeds (0.0013).",
        "  Not to be told apart from it, within the spread of seeds: as-fast, short.",
    ]


def test_a_single_seed_decides_nothing(runs):
    told = verdict([*runs("a", (1.0,), (0.98,)), *runs("b", (2.0,), (0.97,))])
    assert told[0] == "a reached a validation accuracy of 0.97 first: after 1.00 s."
    assert told[1] == "  Then follow b by 1.00 s; a single seed does not tell whether that is chance (--seeds 3)."


def test_who_reaches_nothing_is_told_so(runs):
    told = verdict([*runs("a", (None, None), (0.5, 0.5)), *runs("b", (None, 1.0), (0.6, 0.6))])
    assert told[:3] == [
        "None reached a validation accuracy of 0.97 with every seed.",
        "a reached it with 0 of 2 seeds.",
        "b reached it with 1 of 2 seeds.",
    ]
    assert verdict(runs("alone", (1.0, 2.0), (0.9, 0.9))) == []


def test_the_table_shows_means_and_deviations(runs):
    stream = io.StringIO()
    print_comparison(
        Comparison("mlp", "mnist", [*runs("a", (1.0, 2.0), (0.9, 0.9)), *runs("b", (3, None), (0.9, 0.8))]), stream
    )
    text = stream.getvalue()
    assert "1.5 (0.7)" in text
    assert "3.0, 1 of 2" in text
    assert "0.8500 (0.0707)" in text
    assert "means of 2 seeds" in text
    assert "staleness 1-3 (% of gradients)" in text
