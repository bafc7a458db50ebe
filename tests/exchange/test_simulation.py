"""The servers' protocol under every order of messages that MPI allows: no MPI, no TensorFlow, no clock."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mpitrain.exchange.combine import add_in_order, coefficients
from mpitrain.exchange.servers.messages import Action
from mpitrain.exchange.tickets import TicketBook
from mpitrain.parameters.optimizers import BlockedSGD
from tests.support.simulation import LAYOUT, Scenario, Simulation, gradient


@st.composite
def scenarios(draw: st.DrawFn, synchronous: bool | None = None, bad: bool = True, stop: bool = False) -> Scenario:
    servers, workers = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    asked = st.tuples(st.integers(0, servers + workers - 1), st.integers(0, 300))
    samples, size = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    by_samples = draw(st.booleans())
    total = draw(st.integers(1, 100)) if by_samples else None
    book = TicketBook(samples, size, total, None if by_samples else draw(st.integers(1, 25)))
    inner = draw(st.sets(st.integers(1, max(1, book.updates - 1)), max_size=6))
    return Scenario(
        synchronous=draw(st.booleans()) if synchronous is None else synchronous,
        servers=servers,
        workers=workers,
        book=book,
        cuts=tuple(sorted({cut for cut in inner if cut < book.updates} | {book.updates})),
        max_bad=draw(st.integers(0, 3)) if bad else 0,
        bad=draw(st.sampled_from([0.0, 0.02, 0.2])) if bad else 0.0,
        seed=draw(st.integers(0, 2**32)),
        stops=tuple(draw(st.lists(asked, min_size=1, max_size=3))) if stop else (),
    )


either = st.booleans().flatmap(lambda stop: scenarios(stop=stop))
"""With or without ranks that are asked to stop."""


def failed(sim: Simulation) -> bool:
    return any(worker.culprit is not None for worker in sim.workers.values())


def all_handed_out(sim: Simulation) -> bool:
    """Whether the book has no more tickets; where updates are counted it always has."""
    book = sim.scenario.book
    return book.total_samples is not None and sum(t.size for _, t in sim.handed) == book.total_samples


def applied(sim: Simulation) -> list[list[tuple[int, int]]]:
    """The pushes of each update, from server 0's log."""
    return [entry.applied for entry in sim.servers[0].log if entry.applied]


def replay(sim: Simulation) -> list[np.ndarray]:
    """Every version of the whole vector, computed by one process from the log."""
    versions = [sim.initial.copy()]
    optimizer, total = BlockedSGD(LAYOUT.size, LAYOUT.dtype), np.zeros_like(sim.initial)
    for pairs in applied(sim):
        pushes = [sim.pushes[pair] for pair in pairs]
        gradients = [gradient(versions[p.version], p.worker - sim.scenario.servers, p.ticket) for p in pushes]
        factors, scale = coefficients([p.weight for p in pushes], False)
        new = np.zeros_like(total)
        rate = sim.scenario.plan.learning_rate(len(versions) - 1)
        optimizer.apply(versions[-1], add_in_order(gradients, factors, total), new, rate, scale)
        versions.append(new)
    return versions


@settings(max_examples=150, deadline=None)
@given(either)
def test_everybody_ends_with_what_the_log_says(scenario: Scenario) -> None:
    sim = Simulation(scenario).run()
    versions = replay(sim)
    for server, shard in zip(sim.servers.values(), sim.shards, strict=True):
        assert server.log == sim.servers[0].log, "every server executes the same log"
        assert server.version == len(versions) - 1
        assert server.applied == sum(map(len, applied(sim)))
        assert np.array_equal(server.parameters, versions[-1][shard])
    assert [entry.number for entry in sim.servers[0].log] == list(range(1, len(sim.servers[0].log) + 1))
    assert not any(sim.links.values()), "nothing that was sent is left unreceived"


@settings(max_examples=150, deadline=None)
@given(either)
def test_each_push_is_settled_once_and_counted(scenario: Scenario) -> None:
    sim = Simulation(scenario).run()
    log = sim.servers[0].log
    used = Counter(pair for entry in log for pair in entry.applied)
    dropped = Counter(pair for entry in log for pair in entry.dropped)
    assert set((used + dropped).values()) <= {1}
    unsettled = sim.pushes.keys() - (used + dropped).keys()
    assert not unsettled or (scenario.synchronous and failed(sim)), "only a step that failed is left incomplete"
    if not failed(sim):
        for pair, push in sim.pushes.items():
            assert (pair in used) == push.carries_gradient
    totals = sim.servers[0]._decider.totals  # type: ignore[union-attr]
    assert totals.pushes == sum(used.values())
    assert totals.version == len(applied(sim))
    assert totals.sums[2] == sum(sim.pushes[pair].weight for pair in used)
    stale = [v - sim.pushes[pair].version for v, pairs in enumerate(applied(sim)) for pair in pairs]
    assert totals.staleness_sum == sum(stale)
    assert totals.staleness_max == max(stale, default=0)
    bad = sum(not push.finite for pair, push in sim.pushes.items() if pair not in unsettled)
    assert totals.bad == bad
    assert failed(sim) == (bad > scenario.max_bad)
    if failed(sim):
        assert {w.culprit for w in sim.workers.values()} == {s.culprit for s in sim.servers.values()}
        worker, _ = sim.servers[0].culprit
        assert any(not push.finite and push.worker == worker for push in sim.pushes.values())


@settings(max_examples=150, deadline=None)
@given(scenarios())
def test_the_run_has_its_length_and_its_cuts(scenario: Scenario) -> None:
    sim = Simulation(scenario).run()
    book, version = scenario.book, sim.servers[0].version
    if failed(sim):
        assert sim.met == [cut for cut in scenario.cuts if cut <= version and cut in sim.met]
        return
    lost = len({entry.number for entry in sim.servers[0].log if entry.dropped and not entry.applied})
    if book.total_samples is None:
        assert version == book.updates, "a dropped update takes another ticket"
        assert sim.met == list(scenario.cuts)
    else:
        assert book.updates - lost <= version <= book.updates
        reached = [cut for cut in scenario.cuts if cut <= version]
        assert list(dict.fromkeys(sim.met)) == sorted({*reached, version})


@settings(max_examples=300, deadline=None)
@given(scenarios(stop=True))
def test_whoever_is_asked_to_stop_ends_all_at_one_version(scenario: Scenario) -> None:
    sim = Simulation(scenario).run()
    log, version = sim.servers[0].log, sim.servers[0].version
    if failed(sim):
        return
    assert sim.met[-1] == version
    whole = version == scenario.cuts[-1] or all_handed_out(sim)
    assert sim.ends_with is (Action.END if whole else Action.STOP)
    if sim.ends_with is Action.STOP:
        assert sim.stop_known is not None
    if sim.stop_known is not None:
        assert not any(ticket for entry in log[sim.stop_known :] for _, ticket in entry.answered), "no more tickets"


@settings(max_examples=150, deadline=None)
@given(scenarios())
def test_tickets_are_handed_out_once_and_cover_each_epoch(scenario: Scenario) -> None:
    sim = Simulation(scenario).run()
    expected = iter(scenario.book)
    handed: dict[int, list] = {}
    for _, ticket in sim.handed:
        handed.setdefault(ticket.number, []).append(ticket)
    assert sorted(handed) == list(range(len(handed)))
    for number in sorted(handed):
        whole = next(expected)
        parts = sorted(handed[number], key=lambda t: t.first)
        if not scenario.synchronous:
            assert parts == [whole], "an asynchronous ticket goes to one worker"
        elif not failed(sim):
            assert len(parts) == scenario.workers
        if len(parts) in (1, scenario.workers):
            places = [i for t in parts for i in range(t.first, t.first + t.size)]
            if len(parts) == (scenario.workers if scenario.synchronous else 1):
                assert places == list(range(whole.first, whole.first + whole.size))
    if scenario.book.total_samples is not None and not failed(sim):
        assert sum(t.size for _, t in sim.handed) == scenario.book.total_samples


@settings(max_examples=60, deadline=None)
@given(scenarios(synchronous=True, bad=False), st.integers(0, 2**32))
def test_synchronous_training_is_the_same_bits_for_any_servers_and_any_timing(scenario: Scenario, seed: int) -> None:
    from dataclasses import replace

    def vector(servers: int, seed: int) -> bytes:
        sim = Simulation(replace(scenario, servers=servers, seed=seed)).run()
        assert all((w.version, w.totals.staleness_max) == (scenario.book.updates, 0) for w in sim.workers.values())
        return b"".join(server.parameters.tobytes() for server in sim.servers.values())

    assert len({vector(servers, seed + servers) for servers in (1, 2, 3)}) == 1


@settings(max_examples=60, deadline=None)
@given(scenarios(synchronous=False, bad=False))
def test_staleness_stays_below_what_the_other_workers_can_do_meanwhile(scenario: Scenario) -> None:
    sim = Simulation(scenario).run()
    if scenario.workers == 1:
        assert sim.workers[scenario.servers].totals.staleness_max == 0
    for entry in sim.servers[0].log:
        assert len(entry.applied) <= 1, "an asynchronous update applies one push"
