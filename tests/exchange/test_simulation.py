"""The servers' protocol under every order of messages that MPI allows: no MPI, no TensorFlow, no clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpitrain.exchange.base import Plan
from mpitrain.exchange.combine import add_in_order, coefficients
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.registry import MODES
from mpitrain.exchange.servers.messages import Action, Answer, Entry, Push, Ready
from mpitrain.exchange.servers.policies import Asynchronous
from mpitrain.exchange.servers.server import Server
from mpitrain.exchange.servers.slots import TravellingSlots
from mpitrain.exchange.tickets import TicketBook
from mpitrain.parameters.numpy_optimizers import SGD
from tests.support.simulation import LAYOUT, Scenario, Simulation, gradient

KINDS = ("sync", "backed", "async", "bounded", "soft", "damped", "compensated", "pipelined")


@st.composite
def policies(draw: st.DrawFn, kinds: tuple[str, ...]) -> Policy:
    kind = draw(st.sampled_from(kinds))
    if kind == "pipelined":
        plain = tuple(other for other in KINDS if other not in ("backed", "pipelined"))
        return replace(draw(policies(plain)), pipeline=True)
    workers = draw(st.integers(2 if kind == "backed" else 1, 5))
    if kind in ("bounded", "soft", "damped", "compensated"):
        some = kind != "bounded" and draw(st.booleans())
        return Policy(
            "ps-async",
            workers,
            staleness_bound=draw(st.integers(0, 4)) if kind == "bounded" or draw(st.booleans()) else None,
            soft_quorum=draw(st.integers(2, 7)) if kind == "soft" or some else 1,
            damping=kind == "damped" or (some and draw(st.booleans())),
            compensation=0.5 if kind == "compensated" else None,
            adaptive=draw(st.booleans()),
        )
    backups = draw(st.integers(1, workers - 1)) if kind == "backed" else 0
    return Policy("ps-async" if kind == "async" else "ps-sync", workers, backups)


@st.composite
def scenarios(draw: st.DrawFn, *kinds: str, bad: bool = True, stop: bool = False) -> Scenario:
    policy = draw(policies(kinds or KINDS))
    servers, workers = draw(st.integers(1, 3)), policy.workers
    asked = st.tuples(st.integers(0, servers + workers - 1), st.integers(0, 300))
    samples, size = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    by_samples = draw(st.booleans())
    total = draw(st.integers(1, 100)) if by_samples else None
    book = TicketBook(samples, size, total, None if by_samples else draw(st.integers(1, 25)), policy.tickets)
    inner = draw(st.sets(st.integers(1, max(1, book.updates - 1)), max_size=6))
    return Scenario(
        policy=policy,
        servers=servers,
        book=book,
        cuts=tuple(sorted({cut for cut in inner if cut < book.updates} | {book.updates})),
        max_bad=draw(st.integers(0, 3)) if bad else 0,
        bad=draw(st.sampled_from([0.0, 0.02, 0.2])) if bad else 0.0,
        seed=draw(st.integers(0, 2**32)),
        stops=tuple(draw(st.lists(asked, min_size=1, max_size=3))) if stop else (),
        nodes=draw(st.integers(0, 3)),
    )


either = st.booleans().flatmap(lambda stop: scenarios(stop=stop))
"""With or without ranks that are asked to stop."""


def failed(sim: Simulation) -> bool:
    return any(worker.culprit is not None for worker in sim.workers.values())


def all_done(sim: Simulation) -> bool:
    """Whether each ticket of the book was applied or was bad; where updates are counted there are always more."""
    done = {ticket for pairs in applied(sim) for _, ticket in pairs}
    bad = {ticket for (_, ticket), pushes in sim.pushes.items() if not all(p.finite for p in pushes)}
    return len(done | bad) == sim.scenario.book.tickets


def applied(sim: Simulation) -> list[list[tuple[int, int]]]:
    """The pushes of each update, from server 0's log."""
    updates: list[list[tuple[int, int]]] = []
    taken: list[tuple[int, int]] = []
    for entry in sim.servers[0].log:
        taken += entry.applied
        if entry.step:
            updates.append(taken)
            taken = []
    assert failed(sim) or not taken, "what was taken up makes an update"
    return updates


def replay(sim: Simulation) -> list[np.ndarray]:
    """Every version of the whole vector, computed by one process from the log."""
    policy = sim.scenario.policy
    corrected = policy.soft_quorum > 1 or policy.damping or policy.compensation is not None
    return corrected_versions(sim) if corrected else plain_versions(sim)


def corrected_versions(sim: Simulation) -> list[np.ndarray]:
    """The published formulas of softsync, damping and DC-ASGD, in float64."""
    policy, versions, square = sim.scenario.policy, [sim.initial.copy()], np.zeros(LAYOUT.size)
    for pairs in applied(sim):
        now = versions[-1].astype(np.float64)
        total, weights = np.zeros(LAYOUT.size), 0.0
        for push in (sim.pushes[pair][-1] for pair in pairs):
            pulled = versions[push.version]
            g = gradient(pulled, push.worker - sim.scenario.servers, push.ticket).astype(np.float64)
            if policy.compensation is not None:
                strength = np.full_like(g, policy.compensation)
                if policy.adaptive:
                    square = 0.95 * square + 0.05 * g * g
                    strength /= np.sqrt(square + 1e-7)
                g = g + strength * g * g * (now - pulled)
            if policy.damping:
                g = g / max(1, len(versions) - 1 - push.version)
            total += push.weight * g
            weights += push.weight
        rate = sim.scenario.plan.learning_rate(len(versions) - 1)
        versions.append((now - rate * total / weights).astype(np.float32))
    return versions


def plain_versions(sim: Simulation) -> list[np.ndarray]:
    """Sums in rank order, and SGD."""
    versions = [sim.initial.copy()]
    optimizer, total = SGD(LAYOUT.size, LAYOUT.dtype), np.zeros_like(sim.initial)
    for pairs in applied(sim):
        pushes = [sim.pushes[pair][-1] for pair in pairs]
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
        assert failed(sim) or server.applied == sum(map(len, applied(sim)))
        if scenario.policy.soft_quorum > 1 or scenario.policy.damping or scenario.policy.compensation is not None:
            np.testing.assert_allclose(server.parameters, versions[-1][shard], rtol=2e-4, atol=2e-5)
        else:
            assert np.array_equal(server.parameters, versions[-1][shard])
    assert [entry.number for entry in sim.servers[0].log] == list(range(1, len(sim.servers[0].log) + 1))
    assert not any(sim.links.values()), "nothing that was sent is left unreceived"


@settings(max_examples=200, deadline=None)
@given(either)
def test_each_push_is_settled_once_and_counted(scenario: Scenario) -> None:
    sim = Simulation(scenario).run()
    log, decider = sim.servers[0].log, sim.servers[0]._decider
    assert decider is not None
    used = Counter(pair for entry in log for pair in entry.applied)
    dropped = Counter(pair for entry in log for pair in entry.dropped)
    assert set(used.values()) <= {1}
    pushed = Counter({pair: len(pushes) for pair, pushes in sim.pushes.items()})
    unsettled = pushed - (used + dropped)
    assert pushed == used + dropped + unsettled
    assert not unsettled or (scenario.policy.parts > 1 and failed(sim)), "only a step that failed is left incomplete"
    every = [push for pushes in sim.pushes.values() for push in pushes]
    if not failed(sim):
        missed = [p for p in every if p.finite and p.weight and not used[p.worker, p.ticket]]
        assert not missed or scenario.policy.backup_workers
        assert all(push.finite for pair in used for push in sim.pushes[pair]) or scenario.policy.backup_workers
    totals, tally = decider.totals, decider.tally
    assert totals.pushes == sum(used.values())
    assert totals.version == len(applied(sim))
    assert totals.sums[2] == sum(sim.pushes[pair][-1].weight for pair in used)
    stale, version = [], 0
    for entry in log:
        stale += [(pair, version - sim.pushes[pair][-1].version) for pair in entry.applied]
        version += entry.step
    assert totals.staleness_sum == sum(s for _, s in stale)
    assert totals.staleness_max == max((s for _, s in stale), default=0)
    assert tally.histogram == dict(sorted(Counter(s for _, s in stale).items()))
    for worker, counts in tally.staleness.items():
        assert counts == Counter(s for (w, _), s in stale if w == worker)
    bad = sum(not p.finite for p in every if (p.worker, p.ticket) not in unsettled)
    assert totals.bad == bad == sum(reasons["not finite"] for reasons in tally.dropped.values())
    assert totals.dropped.tolist() == [reasons.total() for reasons in tally.dropped.values()]
    empty = sum(p.finite and not p.weight for p in every)
    assert failed(sim) or dropped.total() == totals.dropped.sum() + empty
    assert failed(sim) == (bad > scenario.max_bad)
    if failed(sim):
        assert {w.culprit for w in sim.workers.values()} == {s.culprit for s in sim.servers.values()}
        worker, _ = sim.servers[0].culprit
        assert any(not push.finite and push.worker == worker for push in every)


@settings(max_examples=200, deadline=None)
@given(scenarios())
def test_the_run_has_its_length_and_its_cuts(scenario: Scenario) -> None:
    sim = Simulation(scenario).run()
    book, version = scenario.book, sim.servers[0].version
    if failed(sim):
        assert sim.met == [cut for cut in scenario.cuts if cut <= version and cut in sim.met]
        return
    if book.tickets is None:
        assert version == book.updates, "a dropped update takes another ticket"
        assert sim.met == list(scenario.cuts)
        return
    totals = sim.workers[scenario.servers].totals
    if scenario.policy.parts == 1:
        assert version == -(-(book.tickets - totals.bad) // scenario.policy.sharing)
    else:
        lost = len({entry.number for entry in sim.servers[0].log if entry.dropped and not entry.applied})
        assert version == book.updates - lost
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
    whole = version == scenario.cuts[-1] or all_done(sim)
    assert sim.ends_with is (Action.END if whole else Action.STOP)
    if sim.ends_with is Action.STOP:
        assert sim.stop_known is not None
    if sim.stop_known is not None:
        assert not any(ticket for entry in log[sim.stop_known :] for _, ticket in entry.answered), "no more tickets"


@settings(max_examples=200, deadline=None)
@given(scenarios())
def test_tickets_are_handed_out_once_and_cover_each_epoch(scenario: Scenario) -> None:
    sim = Simulation(scenario).run()
    expected = iter(scenario.book)
    handed: dict[int, list] = {}
    for _, ticket in sim.handed:
        handed.setdefault(ticket.number, []).append(ticket)
    late = Counter(p.ticket for pushes in sim.pushes.values() for p in pushes) - Counter(
        ticket for pairs in applied(sim) for _, ticket in pairs
    )
    assert sorted(handed) == list(range(len(handed)))
    for number in sorted(handed):
        whole = next(expected)
        parts = sorted(handed[number], key=lambda t: t.first)
        if scenario.policy.backup_workers:
            assert set(parts) == {whole}
            assert len(parts) <= 1 + late[number], "again only after it was dropped"
        elif scenario.policy.parts == 1:
            assert parts == [whole], "it goes to one worker"
        elif not failed(sim):
            assert len(parts) == scenario.workers
            places = [i for t in parts for i in range(t.first, t.first + t.size)]
            assert places == list(range(whole.first, whole.first + whole.size))
    if scenario.book.total_samples is not None and not failed(sim):
        assert sum(t.size for t in {*(t for _, t in sim.handed)}) == scenario.book.total_samples
        assert all_done(sim) or scenario.policy.parts > 1


@settings(max_examples=60, deadline=None)
@given(scenarios("sync", bad=False), st.integers(0, 2**32))
def test_synchronous_training_is_the_same_bits_for_any_servers_and_any_timing(scenario: Scenario, seed: int) -> None:
    def vector(servers: int, seed: int, nodes: int) -> bytes:
        sim = Simulation(replace(scenario, servers=servers, seed=seed, nodes=nodes)).run()
        assert all((w.version, w.totals.staleness_max) == (scenario.book.updates, 0) for w in sim.workers.values())
        return b"".join(server.parameters.tobytes() for server in sim.servers.values())

    assert len({vector(servers, seed + servers, nodes) for servers in (1, 2, 3) for nodes in (0, 1, 2)}) == 1


@settings(max_examples=100, deadline=None)
@given(scenarios("sync", bad=False), st.integers(0, 2**32))
def test_a_synchronous_pipeline_is_one_update_behind_for_any_timing(scenario: Scenario, seed: int) -> None:
    """Against its formula: each gradient from the version before the newest, or from that of a cut right after it."""
    scenario = replace(scenario, policy=replace(scenario.policy, pipeline=True))
    workers, now = scenario.workers, scenario.cuts
    versions = [Simulation(scenario).initial.astype(np.float64)]
    for version, ticket in zip(range(scenario.book.updates), scenario.book, strict=False):
        pulled = version if version in (0, *now) else version - 1
        parts = [(ticket.part(w, workers).size, gradient(versions[pulled], w, ticket.number)) for w in range(workers)]
        mean = sum(size * g for size, g in parts) / ticket.size
        versions.append(versions[-1] - scenario.plan.learning_rate(version) * mean)
    found = set()
    for servers, nodes in ((1, 0), (2, 1), (3, 2)):
        sim = Simulation(replace(scenario, servers=servers, seed=seed + servers, nodes=nodes)).run()
        found.add(b"".join(server.parameters.tobytes() for server in sim.servers.values()))
        ages = [
            version - push.version
            for version, pairs in enumerate(applied(sim))
            for push in (sim.pushes[pair][-1] for pair in pairs)
        ]
        assert set(ages) <= {0, 1}
        decider = sim.servers[0]._decider
        assert decider is not None
        assert decider.totals.staleness_sum == sum(ages)
        assert len(applied(sim)) == scenario.book.updates
    assert len(found) == 1, "the same bits"
    np.testing.assert_allclose(np.frombuffer(found.pop(), np.float32), versions[-1], rtol=2e-4, atol=2e-5)


@settings(max_examples=300, deadline=None)
@given(st.booleans().flatmap(lambda stop: scenarios("backed", stop=stop)))
def test_an_update_has_the_first_gradients_of_its_step(scenario: Scenario) -> None:
    sim = Simulation(scenario).run()
    sizes = [len(pairs) for pairs in applied(sim)]
    quorum = scenario.policy.sharing
    short = sizes[-1:] if scenario.book.tickets is not None else []
    assert all(size == quorum for size in sizes[: len(sizes) - len(short)])
    assert all(size <= quorum for size in short), "the last update takes the tickets that are left"
    for version, pairs in enumerate(applied(sim)):
        assert pairs == sorted(pairs), "summed in rank order"
        assert {sim.pushes[pair][-1].version for pair in pairs} == {version}, "all from the newest parameters"
    for worker in sim.workers if scenario.book.tickets is None else ():
        tickets = [ticket.number for to, ticket in sim.handed if to == worker]
        assert all(a != b for a, b in pairwise(tickets)), "a straggler holds up no samples"


@settings(max_examples=300, deadline=None)
@given(st.booleans().flatmap(lambda stop: scenarios("bounded", "async", stop=stop)))
def test_no_worker_begins_a_step_too_far_ahead(scenario: Scenario) -> None:
    sim = Simulation(scenario).run()
    clocks = dict.fromkeys(sim.workers, 0)
    greatest = 0
    for entry in sim.servers[0].log:
        assert len(entry.applied) <= 1, "an asynchronous update applies one push"
        for worker, _ in entry.applied + entry.dropped:
            clocks[worker] += 1
        leads = [clocks[worker] - min(clocks.values()) for worker, ticket in entry.answered if ticket]
        greatest = max([greatest, *leads])
    bound, decider = scenario.policy.staleness_bound, sim.servers[0]._decider
    assert decider is not None
    assert decider.tally.clock_gap == greatest
    if bound is not None:
        assert greatest <= bound
        assert decider.totals.staleness_max <= (scenario.workers - 1) * (2 * bound + 1)
    if scenario.workers == 1:
        assert decider.totals.staleness_max == 0


def after_one_push_each(policy: Policy, order: list[int]) -> np.ndarray:
    """The parameters of one server when each worker has pushed once, computed from the initial version."""
    initial = np.random.default_rng(5).normal(size=LAYOUT.size).astype(np.float32)
    plan = Plan(TicketBook(100, 10, None, 1, policy.tickets), (1,), lambda version: 0.1, 3)
    make = MODES[policy.mode]
    assert make is not None
    gradients = {w: [gradient(initial, w, 0)] for w in order}
    slots = TravellingSlots(len(order) + 2, LAYOUT.size, LAYOUT.dtype, keep=True)
    slots[0][:] = initial
    decider = make(policy, tuple(sorted(order)), plan)
    server = Server(0, (0,), gradients, slots, SGD(LAYOUT.size, LAYOUT.dtype), policy, False, decider)
    answers = [out.message for worker in order for out in server.on(Ready(worker))]
    assert len(answers) == len(order)
    for worker, answer in zip(order, answers, strict=True):
        assert isinstance(answer, Answer)
        assert answer.ticket is not None
        server.on(Push(worker, answer.ticket.number, 0, float(worker), True, tail=np.zeros(3)))
    assert server.version == 1
    return server.parameters.copy()


@given(st.permutations([1, 2, 3, 4]))
def test_a_soft_quorum_of_all_workers_is_the_synchronous_update(order: list[int]) -> None:
    soft = after_one_push_each(Policy("ps-async", 4, soft_quorum=4), order)
    np.testing.assert_allclose(soft, after_one_push_each(Policy("ps-sync", 4), [1, 2, 3, 4]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_bound_on_staleness_is_the_least_one(workers: int, bound: int) -> None:
    """The first worker leads by the bound when it begins, and the others do all they may before it comes."""
    plan = replace(Simulation(SMALLEST).scenario.plan, book=TicketBook(10, 1, None, 1000), cuts=(1000,))
    decider = Asynchronous(range(workers), plan, bound)
    held: dict[int, tuple[int, int]] = {}

    def answered(entries: list[Entry]) -> None:
        for worker, ticket in (pair for entry in entries for pair in entry.answered):
            assert ticket is not None
            held[worker] = ticket.number, decider.totals.version

    def run(worker: int) -> None:
        while worker in held:
            ticket, version = held.pop(worker)
            answered(decider.complete(Push(worker, ticket, version, 1.0, True, tail=np.zeros(5))))

    for worker in range(workers):
        answered(decider.ready(worker))
    if workers == 1:
        return
    ahead = held[0]
    for _ in range(bound):
        held.pop(0)
        answered(decider.complete(Push(0, *ahead, 1.0, True, tail=np.zeros(5))))
        ahead = held[0]
    held.pop(0)
    for worker in range(1, workers):
        run(worker)
    # With the slowest of them at its limit, those that waited for it go on.
    for _ in range(2 * bound + 1):
        for worker in range(1, workers):
            run(worker)
    decider.complete(Push(0, *ahead, 1.0, True, tail=np.zeros(5)))
    assert decider.totals.staleness_max == (workers - 1) * (2 * bound + 1)


SMALLEST = Scenario(Policy("ps-async", 1), 1, TicketBook(1, 1, None, 1), (1,), 0, 0.0, 0)
