"""The back ends of all-reduce: their sums, their bytes, and the arithmetic beneath them."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.exchange.allreduce import messages
from mpitrain.exchange.allreduce.backend import own_slices
from mpitrain.exchange.allreduce.backends import BACKENDS, NARROWING
from mpitrain.exchange.allreduce.halving_doubling import schedule
from mpitrain.exchange.allreduce.hierarchical import lanes_of, own_of_lanes
from mpitrain.exchange.allreduce.messages import CHUNK, chunks
from mpitrain.exchange.allreduce.trial import Line
from mpitrain.exchange.allreduce.wire import Wire, has_overflowed
from tests.exchange.sums import AUTO, NODES, RANKS, Sum, sums
from tests.support.mpi import launch

ALL = [case for ranks in range(1, RANKS + 1) for case in sums(ranks)]
Seen = dict[int, list[dict[str, Any]]]
FOUR_BYTES, BLOCK = 4, 64
ROUNDING = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What each rank saw of each sum; one launch makes them all."""
    folder: Path = tmp_path_factory.mktemp("sums")
    launch(RANKS, ["-m", "tests.exchange.sums", str(folder)], timeout=200).check()
    return {
        ranks: [pickle.loads((folder / f"{ranks}.{rank}").read_bytes()) for rank in range(ranks)]
        for ranks in range(1, RANKS + 1)
    }


def by_ranks_and_backend(cases: list[Sum]) -> Any:
    groups = sorted({(case.ranks, case.backend) for case in cases})
    return pytest.mark.parametrize(("ranks", "backend"), groups)


def of(ranks: int, backend: str) -> list[Sum]:
    return [case for case in ALL if (case.ranks, case.backend) == (ranks, backend)]


@by_ranks_and_backend(ALL)
def test_the_sum_is_that_of_numpy_in_float64(ranks: int, backend: str, seen: Seen) -> None:
    for case in of(ranks, backend):
        if case.scale > 1:
            continue
        expected, sizes = case.expected()
        found = seen[ranks][0][case.name]["sum"]
        # Each of the additions, and on a narrow wire each of the hops, rounds once.
        allowed = ranks * (sizes * 2.0**-24 + (sizes * ROUNDING[case.wire] if case.wire != "float32" else 0))
        assert found.shape == expected.shape
        assert (np.abs(found - expected) <= allowed + 1e-7).all(), case.name


@by_ranks_and_backend(ALL)
def test_all_ranks_have_the_same_bits_each_time_also_from_the_owners(ranks: int, backend: str, seen: Seen) -> None:
    for case in of(ranks, backend):
        digests = [d for rank in seen[ranks] for d in rank[case.name]["digests"]]
        overflows = {rank[case.name]["overflow"] for rank in seen[ranks]}
        rounds = 3 if hasattr(BACKENDS[backend], "sum_own") else 2
        if case.scale > 1:
            assert overflows == {rounds}, case.name
            assert not digests, "nobody goes on with a sum that is not finite"
        else:
            assert overflows == {0}, case.name
            assert len(set(digests)) == 1, case.name
            assert len(digests) == rounds * ranks


@by_ranks_and_backend(ALL)
def test_bytes_follow_the_formula(ranks: int, backend: str, seen: Seen) -> None:
    for case in of(ranks, backend):
        if case.scale > 1:
            continue
        sent = [rank[case.name]["sent"] for rank in seen[ranks]]
        whole = case.length * FOUR_BYTES
        narrow = whole if case.wire == "float32" else whole // 2
        if backend in ("ring", "halving-doubling"):
            assert sum(sent) == 2 * (ranks - 1) * narrow, case.name
        elif backend == "shared":
            assert sent == [whole] * ranks
        elif backend == "hierarchical":
            assert sum(sent) == ranks * whole + 2 * (len(NODES[ranks]) - 1) * narrow, case.name
        if backend == "ring":
            share = 2 * (ranks - 1) * narrow / ranks
            assert all(abs(s - share) <= 2 * BLOCK * (ranks - 1) for s in sent), "each rank within a block a hop"


@by_ranks_and_backend([case for case in ALL if hasattr(BACKENDS[case.backend], "sum_own")])
def test_the_owners_slices_are_the_vector(ranks: int, backend: str, seen: Seen) -> None:
    for case in of(ranks, backend):
        owned = [rank[case.name]["own"] for rank in seen[ranks]]
        assert [low for low, _ in owned] == [0, *(high for _, high in owned[:-1])]
        assert owned[-1][1] == case.length


def test_the_choice_is_the_same_on_all_ranks_and_has_measured_all(seen: Seen) -> None:
    told = [rank["auto"]["chosen"] for rank in seen[AUTO]]
    assert all(other == told[0] for other in told)
    near, far, narrow = told[0]
    assert {choice.backend for choice in near.seconds} == set(near.fits) == {"shared", "mpi"}
    assert set(far.fits) == {"hierarchical", "ring", "halving-doubling", "mpi"}
    assert set(narrow.fits) == set(NARROWING)
    assert {choice.wire for choice in narrow.seconds} == {"float16"}
    for measured in told[0]:
        assert measured.seconds[measured.choice] == min(measured.seconds.values())
        assert all(latency >= 0 and (speed is None or speed > 0) for latency, speed in measured.fits.values())
        assert measured.choice.name in measured.describe()


@given(st.floats(0, 1), st.floats(1e-9, 1e-3), st.integers(1, 10**9))
def test_a_line_through_its_trials_goes_on(latency: float, slope: float, size: int) -> None:
    line = Line([(n, latency + n * slope) for n in (10, 1000, 50000)])
    assert line.at(size) == pytest.approx(latency + size * slope, rel=1e-6, abs=1e-9)
    assert line.latency == pytest.approx(latency, rel=1e-6, abs=1e-9)


def test_times_that_fall_with_length_are_noise() -> None:
    line = Line([(10, 0.5), (1000, 0.4)])
    assert line.slope == 0
    assert line.at(10**9) == 0.4
    assert Line([(10, 0.5)]).at(10**9) == 0.5


SIZES = st.integers(0, 5000)


@given(SIZES, st.integers(1, 40))
def test_slices_are_equal_to_within_a_block(size: int, ranks: int) -> None:
    lengths = [part.stop - part.start for part in own_slices(size, ranks, FOUR_BYTES)]
    assert sum(lengths) == size
    assert max(lengths) - min(lengths) <= 2 * BLOCK // FOUR_BYTES
    assert all(part.start * FOUR_BYTES % BLOCK == 0 or part.start == size for part in own_slices(size, ranks, 4))


@given(SIZES, SIZES, st.integers(1, 300))
def test_chunks_cover_a_part(low: int, length: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "MAX_COUNT", most)
        cut = chunks(slice(low, low + length))
    assert [i for c in cut for i in range(c.start, c.stop)] == list(range(low, low + length))
    assert all(0 < c.stop - c.start <= min(most, CHUNK) for c in cut)


@given(st.integers(1, 70), SIZES)
def test_halving_gathers_every_term_once(ranks: int, size: int) -> None:
    plans = [schedule(rank, ranks, size, FOUR_BYTES) for rank in range(ranks)]
    terms = [Counter({rank: 1}) for rank in range(ranks)]
    for rank, plan in enumerate(plans):
        if plan.stands_for is not None:
            assert plans[plan.stands_for].folds_into == rank
            terms[rank] += terms[plan.stands_for]
    held = [slice(0, size)] * ranks
    for k in range(max(len(plan.steps) for plan in plans)):
        before = [*terms]
        for rank, plan in enumerate(plans):
            if plan.folds_into is not None:
                continue
            step = plan.steps[k]
            other = plans[step.partner].steps[k]
            assert other.partner == rank
            assert (step.keep, step.give) == (other.give, other.keep)
            assert {step.keep.start, step.give.start} >= {held[rank].start}
            held[rank] = step.keep
            terms[rank] = before[rank] + before[step.partner]
    everyone = Counter(range(ranks))
    assert all(terms[r] == everyone for r, plan in enumerate(plans) if plan.folds_into is None)
    assert all(held[r] == plan.own for r, plan in enumerate(plans) if plan.folds_into is None)
    owned = [plan.own for plan in plans]
    assert [part.start for part in owned] == [0, *(part.stop for part in owned[:-1])]
    assert owned[-1].stop == size
    # Each element travels from and to the folded ranks once, and otherwise to and from each of its terms.
    given = sum(step.give.stop - step.give.start for plan in plans for step in plan.steps)
    folded = sum(plan.folds_into is not None for plan in plans) * size
    assert 2 * (given + folded) == 2 * (ranks - 1) * size


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), SIZES, st.randoms())
def test_lanes_have_one_rank_of_each_node(counts: list[int], size: int, random: Any) -> None:
    hosts = [host for host, count in enumerate(counts) for _ in range(count)]
    random.shuffle(hosts)
    leaders = [hosts.index(host) for host in hosts]
    lanes = lanes_of(leaders)
    for lane in range(min(counts)):
        assert sorted(host for host, other in zip(hosts, lanes, strict=True) if other == lane) == list(
            range(len(counts))
        )
    assert sum(lane is None for lane in lanes) == len(hosts) - min(counts) * len(counts)
    owned = own_of_lanes(lanes, size, FOUR_BYTES)
    assert [part.start for part in owned] == [0, *(part.stop for part in owned[:-1])]
    assert owned[-1].stop == size
    assert all(part.start == part.stop for part, lane in zip(owned, lanes, strict=True) if lane is None)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_narrow_wire_rounds_to_nearest_and_gives_back_what_it_took(name: str) -> None:
    wire = Wire(name, np.dtype(np.float32))
    bits = np.arange(2**16, dtype=np.uint16)
    every = bits.view(np.float16 if name == "float16" else ml_dtypes.bfloat16)
    out, again = np.empty(2**16, np.float32), np.empty(2**16, wire.dtype)
    wire.decode(every, out)
    assert np.array_equal(out, every.astype(np.float32), equal_nan=True)
    wire.encode(out, again)
    assert np.array_equal(again.view(np.uint16)[np.isfinite(out)], bits[np.isfinite(out)])
    random = np.random.default_rng(0)
    values = (random.standard_normal(10**5) * 10.0 ** random.integers(-9, 5, 10**5)).astype(np.float32)
    codes = np.empty(values.size, wire.dtype)
    wire.encode(values, codes)
    with np.errstate(over="ignore"):
        assert np.array_equal(codes.view(np.uint16), values.astype(wire.dtype).view(np.uint16))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_an_overflow_is_noticed(bad: float) -> None:
    values = np.arange(100, dtype=np.float32)
    assert not has_overflowed(values)
    assert not has_overflowed(values[:0])
    values[70] = bad
    assert has_overflowed(values)
