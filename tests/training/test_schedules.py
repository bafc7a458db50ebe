"""Effective learning rates, against values worked out by hand."""

from __future__ import annotations

import pytest

from mpitrain.config import RunConfig
from mpitrain.errors import InputError
from mpitrain.training.schedules import LearningRate


def rates(total: int = 8, sharing: int = 4, **options: object) -> list[float]:
    rate = LearningRate.of(RunConfig(**options), 0.1, sharing, total)  # type: ignore[arg-type]
    return [rate(version) for version in range(total)]


@pytest.mark.parametrize(("scaling", "first"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_scaling(scaling: str, first: float) -> None:
    assert rates(lr_scaling=scaling) == pytest.approx([first] * 8)


def test_warm_up_rises_to_the_full_rate() -> None:
    assert rates(warmup_steps=4) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1, 0.1, 0.1])


def test_cosine_falls_from_the_full_rate_after_warm_up() -> None:
    root = 0.5**0.5
    fall = [0.1, 0.05 * (1 + root), 0.05, 0.05 * (1 - root)]
    assert rates(4, lr_schedule="cosine") == pytest.approx(fall)
    assert rates(6, lr_schedule="cosine", warmup_steps=2) == pytest.approx([0.05, 0.1, *fall])
    assert LearningRate.of(RunConfig(lr_schedule="cosine"), 0.1, 1, 4)(9) == 0


def test_steps_count_from_the_end_of_warm_up() -> None:
    assert rates(lr_schedule="step:2:0.5", warmup_steps=1) == pytest.approx(
        [0.1, 0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.0125]
    )


def test_a_choice_is_checked_where_no_command_line_did() -> None:
    with pytest.raises(InputError, match="--transport is 'post' but must be one of auto, mpi, shared, both"):
        RunConfig(transport="post").validate()  # type: ignore[arg-type]


def test_a_warm_up_longer_than_the_run() -> None:
    assert rates(3, warmup_steps=10, lr_schedule="cosine") == pytest.approx([0.01, 0.02, 0.03])
