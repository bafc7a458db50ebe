"""The invariants that hold in every mode, from real ranks and real messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpitrain.cluster.roles import assign
from mpitrain.exchange.base import Cut
from mpitrain.exchange.tickets import TicketBook
from tests.exchange.cases import CASES
from tests.support.numpy_run import SAMPLES, Case
from tests.support.numpy_step import Samples, SoftmaxStep

Seen = list[dict[str, Any]]
Exchanged = Callable[[str], Seen]
BY_NAME = {case.name: case for case in CASES}
WHOLE = [c for c in CASES if c.mode != "ps-async" and not c.backups]
SYNCHRONOUS = [
    c for c in WHOLE if c.steps == 20 and c.wire == "float32" and not c.undivided and not c.poison and not c.stop
]
SYNCHRONOUS = [c for c in SYNCHRONOUS if c.rows is None and not c.pipeline]
BACKED = [c for c in CASES if c.backups]
BOUNDED = [c for c in CASES if c.bound is not None]
ASYNCHRONOUS = [c for c in CASES if c.mode == "ps-async" and not c.stop]
STOPPED = [c for c in CASES if c.stop]
SERVED = [c for c in CASES if c.servers]


def named(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda c: c.name)


def whole(seen: Seen) -> np.ndarray:
    """The parameter vector as the workers hold it."""
    return next(s for s in seen if not s["serves"])["parameters"]


def one_process(optimizer: str, order: int, undivided: bool = False) -> np.ndarray:
    """The same 20 global batches of 60 in one process in float32; ``order`` shuffles each batch's samples."""
    from mpitrain.parameters.optimizers import OptimizerSpec, make_optimizer
    from mpitrain.parameters.step import Batch

    step = SoftmaxStep(undivided=undivided)
    parameters = step.initial()
    apply = make_optimizer(OptimizerSpec(optimizer, {}), step.layout)
    samples = Samples(SAMPLES)
    random = np.random.default_rng(order)
    for ticket in TicketBook(SAMPLES, 60, None, 20):
        if ticket.number == 20:
            break
        batch = samples.batch(ticket)
        if order:
            shuffled = random.permutation(batch.size)
            batch = Batch(batch.inputs[shuffled], batch.targets[shuffled])
        apply.apply(parameters, step.run(parameters, batch).gradient, parameters, 0.01)
    return parameters


@pytest.fixture(scope="module")
def reference() -> Callable[[str], tuple[np.ndarray, float]]:
    """One process's parameters, and ten times the largest change that five reorderings of its sums make."""

    def of(optimizer: str) -> tuple[np.ndarray, float]:
        plain = one_process(optimizer, 0)
        spread = max(np.abs(one_process(optimizer, order) - plain).max() for order in range(1, 6))
        return plain, 10 * float(spread)

    return of


@named(SYNCHRONOUS)
def test_synchronous_modes_equal_one_process(case: Case, exchanged: Exchanged, reference: Any) -> None:
    plain, tolerance = reference(case.optimizer)
    assert np.abs(whole(exchanged(case.name)) - plain).max() <= tolerance
    assert tolerance < 1e-3, "the tolerance itself must mean something"


@named(CASES)
def test_all_ranks_hold_the_same_bits_at_every_cut(case: Case, exchanged: Exchanged) -> None:
    seen = exchanged(case.name)
    workers = [s for s in seen if not s["serves"]]
    assert workers[0]["cuts"], "a run has at least its last cut"
    for other in seen:
        assert other["cuts"] == workers[0]["cuts"]
        for mine, theirs in zip(workers[0]["at_cut"], other["at_cut"], strict=True):
            low, high = other["shards"][other["rank"]] if other["serves"] else (0, len(mine))
            assert np.array_equal(mine[low:high], theirs)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_number_of_servers_changes_no_bit(workers: int, optimizer: str, exchanged: Exchanged) -> None:
    one, *more = (whole(exchanged(f"ps-sync-{k}x{workers}-{optimizer}")) for k in (1, 2, 3))
    for vector in more:
        assert np.array_equal(one, vector)


@named([c for c in CASES if c.steps is not None and not c.stop])
def test_exactly_the_asked_updates_are_applied_on_every_server(case: Case, exchanged: Exchanged) -> None:
    for s in exchanged(case.name):
        assert s["version"] == case.steps


@named(CASES)
def test_each_gradient_is_applied_on_every_server_or_counted_as_dropped(case: Case, exchanged: Exchanged) -> None:
    seen = exchanged(case.name)
    good = sum(s["pushed"]["good"] for s in seen)
    bad = sum(s["pushed"]["bad"] for s in seen)
    assert good > 0 or seen[0]["version"] == 0
    tally = seen[0]["tally"] if case.servers else None
    late = (
        sum(n for reasons in tally.dropped.values() for why, n in reasons.items() if why != "not finite")
        if tally
        else 0
    )
    assert not late or case.backups
    assert {s["applied"] for s in seen} == {good - late}
    assert not tally or sum(tally.histogram.values()) == good - late
    assert {s["bad"] for s in seen if not s["serves"]} == {bad}
    done = {s["rank"]: s["pushed"]["good"] + s["pushed"]["bad"] for s in seen}
    assert bad == sum(at < done[rank] for rank, steps in case.poison.items() for at in steps)
    assert case.stop or bad == sum(len(steps) for steps in case.poison.values())


@named([c for c in CASES if not c.poison and not c.backups])
def test_an_epoch_is_one_pass_over_the_data(case: Case, exchanged: Exchanged) -> None:
    seen = exchanged(case.name)
    handed: dict[int, list[int]] = {}
    for s in seen:
        for _, epoch, first, count in s["tickets"]:
            handed.setdefault(epoch, []).extend(range(first, first + count))
    last = max(handed, default=0)
    for epoch, places in handed.items():
        assert len(set(places)) == len(places), "no sample twice in an epoch"
        if epoch < last:
            assert sorted(places) == list(range(case.samples))
    total = sum(len(places) for places in handed.values())
    if case.total_samples is not None:
        assert total == case.total_samples
    assert {s["sums"][2] for s in seen if not s["serves"]} == {total}


@named([c for c in SERVED if not c.rows])
def test_bytes_sent_follow_the_formula(case: Case, exchanged: Exchanged) -> None:
    seen = exchanged(case.name)
    nbytes = seen[0]["nbytes"]
    pushed = sum(s["data"] for s in seen if not s["serves"])
    dropped = next(s["dropped"].sum() for s in seen if not s["serves"])
    assert pushed == seen[0]["applied"] * nbytes or case.backups
    assert seen[0]["applied"] * nbytes <= pushed <= (seen[0]["applied"] + dropped) * nbytes
    pulled = sum(s["data"] for s in seen if s["serves"])
    # What a whole pull of all workers is, as far as it travels: others read where servers wrote.
    low, high = zip(*seen[0]["shards"], strict=True)
    sizes = [4 * (b - a) for a, b in zip(low, high, strict=True)]
    workers = range(case.servers, case.ranks)
    first = sum(sizes[s] for s in range(case.servers) for w in workers if not case.near(s, w))
    if case.transport == "shared":
        assert pulled == first == 0
        return
    if case in WHOLE and not case.pipeline:
        assert pulled == first * (1 + seen[0]["version"])
    else:
        # A pull for each push, less those that a worker without a ticket waits out, and one at each cut.
        cuts = len(seen[0]["cuts"])
        assert seen[0]["version"] == 0 or first < pulled
        assert first <= pulled <= first + (seen[0]["applied"] + dropped + cuts * case.workers) * nbytes


@named(SERVED)
def test_a_gradient_is_computed_from_one_whole_version(case: Case, exchanged: Exchanged) -> None:
    seen = exchanged(case.name)
    versions = [np.concatenate(shards) for shards in zip(*(s["versions"] for s in seen if s["serves"]), strict=True)]
    pulled = [pull for s in seen for pull in s["pulled"]]
    assert pulled or seen[0]["version"] == 0
    for version, before, after in pulled:
        assert np.array_equal(before, versions[version]), "no torn read"
        assert np.array_equal(after, versions[version]), "nobody wrote into it during the step"


@named([c for c in CASES if c.mode == "allreduce" and c.allreduce == "mpi"])
def test_all_reduce_states_the_least_bytes(case: Case, exchanged: Exchanged) -> None:
    seen = exchanged(case.name)
    n = case.ranks
    assert {s["data"] for s in seen} == {seen[0]["version"] * (2 * (n - 1) * seen[0]["nbytes"] // n)}


@named([c for c in CASES if c.allreduce in ("ring", "halving-doubling") and c.wire == "float32"])
def test_all_reduce_sends_the_least_bytes(case: Case, exchanged: Exchanged) -> None:
    seen = exchanged(case.name)
    assert sum(s["data"] for s in seen) == seen[0]["version"] * 2 * (case.ranks - 1) * seen[0]["nbytes"]


@named([c for c in CASES if c.owners and c.name.endswith("-owners")])
def test_owners_and_everyone_compute_the_same_bits(case: Case, exchanged: Exchanged) -> None:
    assert np.array_equal(whole(exchanged(case.name)), whole(exchanged(case.name.removesuffix("-owners"))))


@named(ASYNCHRONOUS)
def test_staleness_is_measured(case: Case, exchanged: Exchanged) -> None:
    seen = [s for s in exchanged(case.name) if not s["serves"]]
    assert len({(s["staleness_sum"], s["staleness_max"]) for s in seen}) == 1
    if case.workers == 1:
        assert seen[0]["staleness_max"] == case.pipeline
    else:
        assert seen[0]["staleness_sum"] / case.steps > 0 if case.steps else True
        assert seen[0]["staleness_max"] >= 1


def test_a_stragglers_gradients_are_staler(exchanged: Exchanged) -> None:
    seen = exchanged("ps-async-straggler")
    slow, *fast = [len(s["tickets"]) for s in seen if not s["serves"]]
    assert slow < min(fast), "nobody waits for the straggler"
    assert seen[1]["staleness_max"] > BY_NAME["ps-async-straggler"].workers - 1


@named(BOUNDED)
def test_no_worker_runs_too_far_ahead(case: Case, exchanged: Exchanged) -> None:
    seen = exchanged(case.name)
    assert case.bound is not None
    gap = seen[0]["tally"].clock_gap
    assert gap == case.bound if case.slow else gap <= case.bound
    assert seen[-1]["staleness_max"] <= (case.workers - 1) * (2 * case.bound + 1)
    if case.bound == 0 and not case.stop:
        done = [sum(s["pushed"].values()) for s in seen if not s["serves"]]
        assert max(done) - min(done) <= 1, "all work at the pace of the slowest"


def test_an_update_does_not_wait_for_a_straggler_with_a_backup(exchanged: Exchanged) -> None:
    seen = exchanged("ps-sync-backup")
    workers = [s for s in seen if not s["serves"]]
    slow, *fast = [sum(s["pushed"].values()) for s in workers]
    assert slow < min(fast)
    dropped = workers[0]["dropped"]
    assert seen[0]["tally"].dropped[2]["late"] == dropped[0] > 0
    assert sum(s["data"] for s in workers) < (seen[0]["applied"] + dropped.sum()) * seen[0]["nbytes"], "a header alone"


@named([c for c in BACKED if c.steps is not None and not c.stop])
def test_each_update_has_as_many_gradients_as_asked(case: Case, exchanged: Exchanged) -> None:
    seen = exchanged(case.name)
    assert case.steps is not None
    assert {s["applied"] for s in seen} == {case.steps * (case.workers - case.backups)}
    assert all(np.array_equal(s["state"], seen[-1]["state"]) for s in seen if not s["serves"])


def test_dropped_samples_are_trained_on_later(exchanged: Exchanged) -> None:
    (case,) = [c for c in BACKED if c.total_samples]
    seen = exchanged(case.name)
    assert {s["sums"][2] for s in seen if not s["serves"]} == {case.total_samples}
    parts = {tuple(ticket[1:]) for s in seen for ticket in s["tickets"]}
    assert sum(count for _, _, count in parts) == case.total_samples


@pytest.mark.parametrize(
    ("chunked", "whole_messages"), [("allreduce-chunked", "allreduce-2-adam"), ("ps-sync-chunked", "ps-sync-2x2-adam")]
)
def test_messages_over_the_limit_are_cut(chunked: str, whole_messages: str, exchanged: Exchanged) -> None:
    assert np.array_equal(whole(exchanged(chunked)), whole(exchanged(whole_messages)))


@named([c for c in CASES if c.name.endswith(("-adam-mpi", "-adam-both"))])
def test_messages_and_memory_give_the_same_bits(case: Case, exchanged: Exchanged) -> None:
    assert np.array_equal(whole(exchanged(case.name)), whole(exchanged(case.name.rpartition("-")[0])))


@named([c for c in CASES if c.rows and not c.pipeline])
def test_rows_alone_give_the_same_bits_for_fewer_bytes(case: Case, exchanged: Exchanged) -> None:
    plain, seen = exchanged("ps-sync-rows-whole"), exchanged(case.name)
    assert np.array_equal(whole(seen), whole(plain))
    pushed, least = (sum(s["data"] for s in run if not s["serves"]) for run in (seen, plain))
    # Of 13 rows with 7 elements two are moved, twice where shards cut through them, each with its number.
    assert pushed < least - 20 * case.workers * (4 * 7 * 11 - 2 * case.servers * (8 + 4 * 7))


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("ps-sync-piped-mpi", "ps-sync-piped"),
        ("ps-sync-piped-both", "ps-sync-piped"),
        ("ps-sync-piped-rows", "ps-sync-piped-rows-whole"),
    ],
)
def test_a_pipeline_gives_the_same_bits_by_any_way(name: str, same: str, exchanged: Exchanged) -> None:
    assert np.array_equal(whole(exchanged(name)), whole(exchanged(same)))


def test_a_synchronous_pipeline_follows_its_formula(exchanged: Exchanged) -> None:
    """Each gradient from the version before the newest, where there is one since the last cut."""
    from mpitrain.parameters.optimizers import OptimizerSpec, make_optimizer

    case, seen = BY_NAME["ps-sync-piped"], exchanged("ps-sync-piped")
    assert case.steps is not None
    assert case.every is not None
    step, samples = SoftmaxStep(), Samples(SAMPLES)
    apply = make_optimizer(OptimizerSpec("adam", {}), step.layout)
    versions = [step.initial()]
    book = TicketBook(SAMPLES, case.batch * case.workers, None, case.steps)
    staleness = 0
    for version, ticket in zip(range(case.steps), book, strict=False):
        age = int(version % case.every > 0)
        pulled = versions[version - age]
        # The last ticket of an epoch may be too small for all to have a part.
        staleness += age * sum(ticket.part(index, case.workers).size > 0 for index in range(case.workers))
        versions.append(versions[-1].copy())
        apply.apply(versions[-2], step.run(pulled, samples.batch(ticket)).gradient, versions[-1], 0.01)
    np.testing.assert_allclose(whole(seen), versions[-1], rtol=1e-4, atol=1e-5)
    assert {s["staleness_sum"] for s in seen if not s["serves"]} == {staleness}


@pytest.mark.parametrize("name", ["allreduce-sum", "ps-sync-sum"])
def test_summed_losses_add(name: str, exchanged: Exchanged) -> None:
    assert np.allclose(whole(exchanged(name)), whole(exchanged("one-sum")), rtol=1e-4, atol=1e-5)


@named([c for c in SYNCHRONOUS if c.mode == "ps-sync"])
def test_float_state_is_averaged_as_all_reduce_does(case: Case, exchanged: Exchanged) -> None:
    states = [s["state"] for s in exchanged(case.name) if not s["serves"]]
    wanted = exchanged(f"allreduce-{case.workers}-{case.optimizer}")[0]["state"]
    for state in states:
        assert np.array_equal(state, states[0])
        assert np.allclose(state, wanted, rtol=1e-12)


def test_a_run_repeats_bit_for_bit(exchanged: Exchanged, tmp_path: Any) -> None:
    import pickle

    from tests.support.mpi import launch

    launch(7, ["-m", "tests.exchange.cases", str(tmp_path)], timeout=180).check()
    for case in CASES:
        if case in WHOLE:
            again = pickle.loads((tmp_path / f"{case.name}.{case.ranks - 1}").read_bytes())
            assert np.array_equal(again["parameters"], exchanged(case.name)[-1]["parameters"]), case.name


@named(STOPPED)
def test_a_rank_that_is_asked_to_stop_ends_all_at_one_version(case: Case, exchanged: Exchanged) -> None:
    seen = exchanged(case.name)
    (version,) = {s["version"] for s in seen}
    last = seen[0]["cuts"][-1]
    assert last[0] == version
    assert [why for _, why in seen[0]["cuts"][:-1]] == [Cut.ON_THE_WAY] * (len(seen[0]["cuts"]) - 1)
    assert case.every is not None
    assert [at for at, _ in seen[0]["cuts"][:-1]] == list(range(case.every, version + (version == 0), case.every))
    assert last[1] == (Cut.LAST if version == case.steps else Cut.STOPPED)
    if case not in WHOLE:
        assert case.steps is not None
        # Each worker still settles the gradient that it computes; nobody begins another.
        unused = sum(map(len, case.poison.values())) + case.backups
        assert (min(case.stop.values()) - unused) // case.quorum <= version < case.steps
    elif not case.poison:
        ((rank, asked),) = case.stop.items()
        # All-reduce, and servers but the first, say so with the next gradients; the others may before there are any.
        late = case.mode == "allreduce" or 0 < rank < case.servers
        next_push = rank < case.servers and (asked > 0 or rank > 0)
        assert version == (max(asked, 1) if late and not next_push else asked + next_push)


def test_roles_cover_every_rank() -> None:
    for case in CASES:
        roles = assign(case.mode, case.ranks, case.servers)
        assert sorted(roles.servers + roles.workers) == list(range(case.ranks))
        assert roles.keeper == 0
        assert roles.chief == case.servers
