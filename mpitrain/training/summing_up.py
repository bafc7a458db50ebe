"""The end of a run: what each rank tells, and the summary that follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mpitrain.cluster.roles import Roles
from mpitrain.cluster.watchdog import asked_to_stop
from mpitrain.exchange.base import Spent, Totals
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.servers.tally import Tally
from mpitrain.reporting.history import HistoryRecord
from mpitrain.reporting.summary import BytesPerUpdate, Fit, Saved, Share, Summary
from mpitrain.training.describing import tally_of
from mpitrain.training.recorder import accuracy_of, mean_loss
from mpitrain.training.resuming import Earlier
from mpitrain.training.setup import Setup, transport_of


@dataclass(frozen=True)
class RankReport:
    """What each rank tells at the end."""

    spent: Spent
    data: int
    headers: int
    dropped: int
    peak_bytes: int
    threads: int
    tally: Tally | None
    saved: Saved | None


@dataclass(frozen=True)
class End:
    """What a run has come to.

    Args:
        totals: of all that was applied.
        rate: samples per second of all workers together; None where that was not measurable.
        train_seconds: on the chief's training clock.
        wall_seconds: over all parts of the run.
        sums: split -> ``StepResult.sums`` of its last evaluation.
        history: all records.
        stopped: whether somebody asked for the end.
    """

    totals: Totals
    rate: float | None
    train_seconds: float
    wall_seconds: float
    sums: Mapping[str, np.ndarray]
    history: Sequence[HistoryRecord]
    stopped: bool


def summarise(
    setup: Setup, policy: Policy, roles: Roles, end: End, told: Sequence[RankReport], earlier: Earlier | None
) -> Summary:
    """The summary of a run, the same on every rank.

    Args:
    setup: of the run.
    policy: how the workers shared updates.
    roles: who served and who worked.
    end: what the run came to.
    told: by every rank.
    earlier: the parts before this one.
    """
    about, config, totals = setup.description, setup.config, end.totals
    undivided, rate = about.undivided, end.rate
    workers = len(roles.workers)
    validation, test = end.sums.get("validation"), end.sums.get("test")
    shares = [told[r].spent.shares() for r in roles.workers]
    before = earlier.manifest if earlier else None
    updates = max(1, totals.version - (before.step if before else 0))
    served = bool(roles.servers)
    samples = int(totals.sums[2])
    counted = told[roles.servers[0]].tally if served else None
    tally = tally_of(counted, [t.dropped for t in told], earlier)
    dropped = {r: dict(sorted(reasons.items())) for r, reasons in tally.dropped.items()}
    stopped = f"stopped by {asked_to_stop() or 'a signal'}" if end.stopped else None
    return Summary(
        status="preempted" if end.stopped else "complete",
        cause=stopped,
        mode=policy.mode,
        model=config.model,
        dataset=about.dataset,
        workers=workers,
        servers=len(roles.servers),
        batch_size=about.batch_size,
        global_batch=setup.step_size * policy.sharing,
        updates=totals.version,
        samples=samples,
        epochs=samples / about.samples,
        train_loss=next((r.loss for r in reversed(end.history) if r.loss is not None), None),
        val_loss=None if validation is None else mean_loss(validation, undivided),
        val_accuracy=None if validation is None else accuracy_of(validation),
        test_loss=None if test is None else mean_loss(test, undivided),
        test_accuracy=None if test is None else accuracy_of(test),
        samples_per_second=rate,
        samples_per_second_per_worker=None if rate is None else rate / workers,
        wall_seconds=end.wall_seconds,
        train_seconds=end.train_seconds,
        share=Share(**{name: sum(s[name] for s in shares) / workers for name in shares[0]}),
        bytes_per_update=BytesPerUpdate(sum(t.data for t in told) / updates, sum(t.headers for t in told) / updates),
        parameter_count=about.layout.parameter_count,
        threads=max(told[r].threads for r in roles.workers),
        staleness_mean=totals.staleness_sum / max(1, totals.pushes) if served else None,
        staleness_max=totals.staleness_max if served else None,
        staleness=tally.histogram if served else {},
        staleness_by_worker={r: dict(sorted(c.items())) for r, c in tally.staleness.items()} if served else {},
        clock_gap_max=tally.clock_gap if not policy.together else None,
        dropped={r: reasons for r, reasons in dropped.items() if reasons},
        choices=choices_of(setup, roles),
        allreduce={} if served else {name: Fit(*fit) for name, fit in setup.allreduce.fits.items()},
        versions=about.versions,
        peak_memory={rank: t.peak_bytes for rank, t in enumerate(told)},
        peak_memory_by_role={
            role: max(told[r].peak_bytes for r in ranks)
            for role, ranks in (("server", roles.servers), ("worker", roles.workers))
            if ranks
        },
        resumed=(*before.resumed, before.step) if before else (),
        saved=told[roles.keeper].saved,
    )


def choices_of(setup: Setup, roles: Roles) -> dict[str, str]:
    """What was chosen by measuring, as explicit values."""
    chosen = {"jit": "on" if setup.jit else "off"}
    if roles.servers:
        chosen["transport"] = transport_of(setup.config, setup.world)
    else:
        allreduce = setup.allreduce.choice
        chosen |= {"allreduce": allreduce.backend, "shard_optimizer": "on" if allreduce.owners_update else "off"}
    return chosen
