"""One small training with a numpy step, in any mode, on any world."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from mpitrain.cluster.roles import assign
from mpitrain.cluster.world import World
from mpitrain.exchange.allreduce import exchange as exchange_of_allreduce
from mpitrain.exchange.allreduce import messages, mpi
from mpitrain.exchange.allreduce.backends import AllReduceChoice
from mpitrain.exchange.base import Cut, Plan
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.registry import open_exchange, shards_of
from mpitrain.exchange.servers import endpoint
from mpitrain.exchange.servers.exchange import ServerLoop
from mpitrain.exchange.servers.messages import Entry
from mpitrain.exchange.servers.server import Server
from mpitrain.exchange.tickets import TicketBook
from mpitrain.parameters.optimizers import OptimizerSpec, make_optimizer
from mpitrain.training.loop import train
from tests.support.numpy_step import RowStep, Samples, SoftmaxStep

SAMPLES = 211


@dataclass(frozen=True)
class Case:
    """A run to make: ``ranks`` processes in ``mode``."""

    name: str
    mode: str
    ranks: int
    servers: int = 0
    backups: int = 0
    bound: int | None = None
    quorum: int = 1
    damping: bool = False
    compensation: float | None = None
    adaptive: bool = False
    pipeline: bool = False
    optimizer: str = "adam"
    batch: int = 10
    steps: int | None = 20
    total_samples: int | None = None
    samples: int = SAMPLES
    undivided: bool = False
    jitter: float = 0.0
    slow: dict[int, float] = field(default_factory=dict)
    every: int | None = 7
    max_bad: int = 0
    transport: str = "shared"
    allreduce: str = "mpi"
    owners: bool = False
    wire: str = "float32"
    rows: bool | None = None
    """Whether gradients have few rows that are not zero, and whether the steps tell which."""
    nodes: int = 1
    """Over how many nodes the run shall believe servers and workers to be dealt out, with transport ``both``."""
    max_count: int | None = None
    poison: dict[int, tuple[int, ...]] = field(default_factory=dict)
    stop: dict[int, int] = field(default_factory=dict)
    """Rank → how many gradients it has computed, or as a server updates applied, when it is asked to stop."""

    @property
    def workers(self) -> int:
        return self.ranks - self.servers

    @property
    def policy(self) -> Policy:
        corrections = self.damping, self.compensation, self.adaptive, self.pipeline
        return Policy(self.mode, self.workers, self.backups, self.bound, self.quorum, *corrections)

    def node(self, rank: int) -> int:
        return (rank if rank < self.servers else rank - self.servers) % self.nodes

    def near(self, server: int, worker: int) -> bool:
        """Whether what these two exchange goes through memory."""
        return self.transport != "mpi" and self.node(server) == self.node(worker)


def run_case(case: Case, world: World) -> dict[str, Any]:
    """Train; return what this rank saw. ``max_count`` lowers the number of elements that one message may have."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (endpoint, mpi, messages, exchange_of_allreduce) if case.max_count else ():
            patch.setattr(module, "MAX_COUNT", case.max_count)
        if case.nodes > 1:
            nodes = [case.node(rank) for rank in range(case.ranks)]
            world = replace(world, leaders=tuple(nodes.index(node) for node in nodes))
        return _run_case(case, on_two_hosts(world) if case.allreduce == "hierarchical" else world)


def on_two_hosts(world: World) -> World:
    """The same ranks, the last of them as if on a host of its own."""
    last = world.size - 1
    return replace(world, leaders=(0,) * last + (last,))


def note_versions(server: Server, versions: list[np.ndarray]) -> None:
    """Keep a copy of each version of a server's shard."""
    versions.append(server.parameters.copy())
    plain = server._apply

    def apply(entry: Entry) -> float:
        seconds = plain(entry)
        if entry.step:
            versions.append(server.parameters.copy())
        return seconds

    server._apply = apply  # type: ignore[method-assign]


def _run_case(case: Case, world: World) -> dict[str, Any]:
    roles = assign(case.mode, world.size, case.servers)
    make = SoftmaxStep if case.rows is None else RowStep
    step = make(case.slow.get(world.rank, 0.0), case.jitter, seed=world.rank, undivided=case.undivided)
    if isinstance(step, RowStep):
        step.tells = bool(case.rows)
    step.poison = set(case.poison.get(world.rank, ()))
    samples = Samples(case.samples)
    size = case.batch * case.policy.parts
    book = TicketBook(case.samples, size, case.total_samples, case.steps, case.policy.tickets)
    plan = Plan(
        book,
        book.cuts(case.every, "steps"),
        lambda version: 0.01,
        4,
        step.state.size,
        case.undivided,
        case.max_bad,
        lambda: done() >= case.stop.get(world.rank, 10**9),
    )
    spec = OptimizerSpec(case.optimizer, {})
    cuts: list[tuple[int, Cut]] = []
    at_cut: list[np.ndarray] = []
    exchange: Any = None

    def done() -> int:
        if not roles.serves(world.rank):
            return step.runs
        return exchange.server.version if exchange is not None else 0

    def on_cut(version: int, why: Cut) -> bool:
        cuts.append((version, why))
        held = exchange.server.parameters if isinstance(exchange, ServerLoop) else exchange.parameters
        at_cut.append(held.copy())
        world.meet("cut", version)
        return False

    tickets = []

    def batch(ticket: Any) -> Any:
        tickets.append(tuple(ticket))
        return samples.batch(ticket)

    shards = shards_of(roles, step.layout, True)
    exchange = open_exchange(
        case.policy,
        world,
        roles,
        step.layout,
        shards,
        step.initial(),
        lambda part: make_optimizer(spec, step.layout, part.start, part.stop),
        plan,
        on_cut,
        AllReduceChoice(case.allreduce, case.owners, case.wire),
        case.transport,
    )
    pushed = {"good": 0, "bad": 0, "empty": 0}
    pulled: list[tuple[int, np.ndarray, np.ndarray]] = []
    versions: list[np.ndarray] = []
    original = step.run

    def counted(parameters: np.ndarray, *args: Any) -> Any:
        before = parameters.copy()
        result = original(parameters, *args)
        pulled.append((exchange.totals.version, before, parameters.copy()))
        pushed["good" if result.finite else "bad"] += 1
        return result

    step.run = cast(Any, counted)  # type: ignore[method-assign]
    if isinstance(exchange, ServerLoop):
        note_versions(exchange.server, versions)
        exchange.serve()
        seen = {
            "version": exchange.server.version,
            "applied": exchange.server.applied,
            "parameters": exchange.server.parameters.copy(),
            "tally": exchange.tally,
        }
    else:
        train(exchange, step, batch, lambda totals: None)
        totals = exchange.totals
        seen = {
            "version": totals.version,
            "applied": totals.pushes,
            "bad": totals.bad,
            "dropped": totals.dropped,
            "parameters": exchange.parameters.copy(),
            "sums": totals.sums.tolist(),
            "staleness_sum": totals.staleness_sum,
            "staleness_max": totals.staleness_max,
            "state": step.state if exchange.state is None else exchange.state,
        }
    exchange.close()
    seen |= {
        "rank": world.rank,
        "serves": roles.serves(world.rank),
        "shards": [(s.start, s.stop) for s in shards],
        "cuts": cuts,
        "at_cut": at_cut,
        "tickets": tickets,
        "pulled": pulled,
        "versions": versions,
        "pushed": pushed,
        "data": exchange.traffic.data,
        "headers": exchange.traffic.headers,
        "updates": book.updates,
        "nbytes": step.layout.nbytes,
    }
    return seen
