"""Every working pair of options really runs, and the synchronous ones give what their formulas say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.data.mnist import load
from mpitrain.exchange.tickets import TicketBook
from mpitrain.training.feed import Feed
from tests.support.mpi import launch
from tests.support.numpy_job import PixelStep
from tests.training.pairs_job import RANKS, STEPS, USED, working

PAIRS = dict(working())


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Where all were run, and their summaries."""
    folder = tmp_path_factory.mktemp("pairs")
    launch(RANKS, ["-m", "tests.training.pairs_job", str(folder)], 240).check()
    return folder, json.loads((folder / "told.json").read_text())


def test_all_of_them_ran(pairs: tuple[Path, dict[str, Any]]) -> None:
    assert list(pairs[1]) == list(PAIRS)
    assert len(PAIRS) > 40


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_makes_its_updates_of_all_their_samples(name: str, pairs: tuple[Path, dict[str, Any]]) -> None:
    folder, config, told = pairs[0], PAIRS[name], pairs[1][name]
    assert (told["status"], told["updates"]) == ("complete", STEPS)
    workers = RANKS - (config.mode != "allreduce")
    together = config.mode != "ps-async"
    sharing = workers - config.backup_workers if together else config.soft_quorum
    assert told["global_batch"] == 10 * config.accumulate * config.local_steps * sharing
    assert told["samples"] == STEPS * told["global_batch"]
    assert not together or told["staleness_max"] in ((1,) if config.pipeline else (0, None))
    assert config.staleness_bound is None or told["clock_gap_max"] <= config.staleness_bound
    trained = np.frombuffer((folder / name / "model.keras").read_bytes(), np.float32)
    assert np.isfinite(trained).all()
    assert np.abs(trained - PixelStep().initial()).max() > 1e-3


def alone(mode: str, steps: int, elastic: float | None) -> np.ndarray:
    """Local SGD, or synchronous EASGD, by their formulas: in one process, in float64 between the steps."""
    workers = RANKS - (mode != "allreduce")
    feed, step = Feed(load("mnist-sample", None), 0, 10), PixelStep()
    shared = step.initial().astype(np.float64)
    own = [shared.copy() for _ in range(workers)]
    tickets = iter(TicketBook(len(feed.dataset.train), 10 * steps * workers, None, STEPS))
    for _ in range(STEPS):
        ticket = next(tickets)
        ways = []
        for worker in range(workers):
            mine = ticket.part(worker, workers)
            if elastic is None:
                own[worker] = shared.copy()
            for k in range(steps):
                result = step.run(own[worker].astype(np.float32), feed.batch(mine.part(k, steps)))
                own[worker] -= 0.01 * result.gradient
            ways.append((mine.size, own[worker] - shared))
        if elastic is None:
            shared += sum(n * way for n, way in ways) / ticket.size
        else:
            for worker, (_, way) in enumerate(ways):
                own[worker] -= elastic * way
                shared += elastic * way
    return shared


@pytest.mark.parametrize("mode", ["allreduce", "ps-sync"])
@pytest.mark.parametrize(
    ("options", "steps", "elastic"),
    [("local_steps", 4, None), ("elastic", 1, 0.2), ("local_steps-elastic", 4, 0.2)],
)
def test_local_steps_and_elastic_averaging_are_as_published(
    mode: str, options: str, steps: int, elastic: float | None, pairs: tuple[Path, dict[str, Any]]
) -> None:
    assert USED["local_steps"] == 4
    assert USED["elastic"] == 0.2
    found = np.frombuffer((pairs[0] / f"{mode}-{options}" / "model.keras").read_bytes(), np.float32)
    np.testing.assert_allclose(found, alone(mode, steps, elastic), rtol=1e-4, atol=2e-6)


def test_local_steps_cut_the_bytes(pairs: tuple[Path, dict[str, Any]]) -> None:
    """An update is one exchange, of as many samples as so many steps have."""
    plain, local = (pairs[1][name] for name in ("ps-sync", "ps-sync-local_steps"))
    assert local["bytes_per_update"]["data"] == plain["bytes_per_update"]["data"]
    assert local["samples"] == USED["local_steps"] * plain["samples"]
