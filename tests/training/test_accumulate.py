from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mpitrain.exchange.tickets import Ticket
from mpitrain.training.accumulate import Accumulation
from tests.support.mpi import launch
from tests.support.numpy_step import Samples, SoftmaxStep


@pytest.mark.parametrize("undivided", [False, True])
@pytest.mark.parametrize(("size", "parts"), [(30, 3), (31, 4), (2, 5), (1, 2)])
def test_parts_give_what_the_whole_gives(size: int, parts: int, undivided: bool) -> None:
    whole, step = SoftmaxStep(undivided=undivided), SoftmaxStep(undivided=undivided)
    samples, ticket = Samples(50), Ticket(0, 0, 7, size)
    expected = whole.run(whole.initial(), samples.batch(ticket))
    given = Accumulation(step, samples.batch, parts).run(step.initial(), ticket)
    assert step.runs == min(size, parts)
    np.testing.assert_allclose(given.gradient, expected.gradient, rtol=1e-4, atol=1e-6)
    assert given.weight == expected.weight
    np.testing.assert_allclose(given.sums[2:], expected.sums[2:])
    assert given.finite


def test_one_bad_part_spoils_the_whole() -> None:
    step, samples = SoftmaxStep(), Samples(50)
    step.poison = {1}
    assert not Accumulation(step, samples.batch, 3).run(step.initial(), Ticket(0, 0, 0, 30)).finite


@pytest.mark.parametrize("mode", ["allreduce", "ps-sync"])
def test_a_run_with_parts_equals_one_with_larger_batches(mode: str, tmp_path: Path) -> None:
    told = {}
    for name, sizes in (("parts", ["--batch-size", "25", "--accumulate", "4"]), ("whole", ["--batch-size", "100"])):
        options = ["--mode", mode, "--epochs", "1", "--run-dir", str(tmp_path / name), *sizes]
        launch(3, ["-m", "tests.training.numpy_train", *options], 60).check()
        told[name] = json.loads((tmp_path / name / "summary.json").read_text())
    parts, whole = told["parts"], told["whole"]
    for key in ("global_batch", "updates", "samples"):
        assert parts[key] == whole[key]
    parameters = [np.frombuffer((tmp_path / name / "model.keras").read_bytes(), np.float32) for name in told]
    assert not np.array_equal(parameters[0], SoftmaxStep().initial())
    np.testing.assert_allclose(*parameters, rtol=1e-4, atol=1e-6)
