from __future__ import annotations

import pytest

from mpitrain.errors import InputError
from mpitrain.training import delay
from mpitrain.training.delay import Delay, Sleeper


def test_a_delay_is_read() -> None:
    assert Delay.of("2:50") == Delay(2, 0.05)
    assert Delay.of("10:0.5:0.25") == Delay(10, 0.0005, 0.25)


@pytest.mark.parametrize("text", ["", "2", "2:", "-1:50", "2:x", "2:50:", "2:50:1.5", "2:50:-0.1", "2:50:0.1:3"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"as in 2:50:0\.1"):
        Delay.of(text)


def test_the_named_rank_sleeps_as_often_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(delay.time, "sleep", slept.append)
    for rank, probability, low, high in ((2, 1.0, 200, 200), (2, 0.0, 0, 0), (1, 1.0, 0, 0), (2, 0.25, 30, 70)):
        slept.clear()
        sleeper = Sleeper(Delay(2, 0.05, probability), rank, 0)
        for _ in range(200):
            sleeper()
        assert low <= len(slept) <= high
        assert set(slept) <= {0.05}
    Sleeper(None, 2, 0)()


def test_only_workers_can_be_delayed() -> None:
    Delay(2, 0.05).check((1, 2))
    with pytest.raises(InputError, match="names rank 0 but must name a worker, which are ranks 1, 2"):
        Delay(0, 0.05).check((1, 2))
