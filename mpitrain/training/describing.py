"""What a checkpoint says of a run: its manifest, and the file of small arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np
from safetensors.numpy import save

from mpitrain.checkpoints.manifest import Local, Manifest
from mpitrain.cluster.roles import Roles
from mpitrain.exchange.base import Totals
from mpitrain.exchange.servers.tally import Drop, Tally
from mpitrain.exchange.tickets import Place
from mpitrain.training.resuming import STATE, Earlier, carried_name
from mpitrain.training.setup import Setup


@dataclass(frozen=True)
class Small:
    """What each rank tells the keeper at a save.

    Args:
        carried: what this worker carries on for itself.
        dropped: gradients of this rank that held NaN or infinity, where there is no server that counts.
        recorded: the chief's totals at the last record of the history.
        seconds: the chief's training clock.
        state: the model's float state, on the chief.
        local: of a worker that trains alone between exchanges.
    """

    carried: Sequence[np.ndarray] = ()
    dropped: int = 0
    recorded: Totals | None = None
    seconds: float = 0.0
    state: np.ndarray | None = None
    local: Local | None = None


def tally_of(counted: Tally | None, dropped: Sequence[int], earlier: Earlier | None) -> Tally:
    """What was counted of each worker over all parts of a run.

    Args:
        counted: by server 0 in this part; None without servers.
        dropped: gradients of each rank that held NaN or infinity in this part, where there are no servers.
        earlier: the parts before.
    """
    if counted is None:
        counts = {r: Counter({Drop.NOT_FINITE.value: count}) for r, count in enumerate(dropped) if count}
        counted = Tally({}, counts)
    return counted if earlier is None else counted.after(Tally.decode(earlier.manifest.tally))


def describe(
    setup: Setup,
    roles: Roles,
    mode: str,
    place: Place,
    totals: Totals,
    told: Sequence[Small],
    tally: Tally | None,
    choices: dict[str, str],
    wall_seconds: float,
    iterations: int,
    earlier: Earlier | None,
) -> tuple[Manifest, bytes]:
    """The manifest, without files, and the content of the file of small arrays.

    Args:
        setup: of the run.
        roles: of the ranks.
        mode: of the run.
        place: how far it has come in its data.
        totals: of all that was applied.
        told: by every rank.
        tally: what server 0 has counted; None without servers.
        choices: what was chosen by measuring.
        wall_seconds: over all parts of the run.
        iterations: updates that the optimizer has seen.
        earlier: the parts before this one.
    """
    about, chief = setup.description, told[roles.chief]
    arrays = {} if chief.state is None or not chief.state.size else {STATE: chief.state}
    for worker, rank in enumerate(roles.workers):
        arrays |= {carried_name(worker, index): value for index, value in enumerate(told[rank].carried)}
    manifest = Manifest(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        place=place,
        samples=about.samples,
        dataset=about.dataset,
        totals=totals,
        recorded=chief.recorded,
        layout=tuple((entry.name, entry.shape) for entry in about.layout.entries),
        dtype=about.layout.dtype.name,
        optimizer=about.optimizer,
        iterations=iterations,
        state=about.state,
        undivided=about.undivided,
        mode=mode,
        workers=len(roles.workers),
        servers=len(roles.servers),
        threads=setup.threads,
        train_seconds=chief.seconds,
        wall_seconds=wall_seconds,
        local=tuple(told[rank].local for rank in roles.workers),
        tally=tally_of(tally, [small.dropped for small in told], earlier).encode(),
        config=setup.config.as_dict() | {"run_dir": None, "resume": None},
        choices=choices,
        versions=about.versions,
        resumed=() if earlier is None else (*earlier.manifest.resumed, earlier.manifest.step),
    )
    return manifest, save(arrays)
