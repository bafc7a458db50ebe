"""Going on from a checkpoint: whether it fits this run, and its vectors into the hands of those who need them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

import numpy as np

from mpitrain.checkpoints.find import Found
from mpitrain.checkpoints.manifest import Manifest
from mpitrain.checkpoints.packing import Holding, Packing
from mpitrain.checkpoints.reader import Reader, scatter
from mpitrain.cluster.world import MAX_COUNT, World
from mpitrain.config import RunConfig
from mpitrain.errors import InputError
from mpitrain.exchange.base import Portion, Totals
from mpitrain.parameters.layout import Layout
from mpitrain.reporting.history import HistoryRecord
from mpitrain.training import travelling
from mpitrain.training.holdings import OPTIMIZER, PARAMETERS, WORKER, Holdings, Kept
from mpitrain.training.local import LocalSteps
from mpitrain.training.phases import phase
from mpitrain.training.setup import Description, Setup

log = logging.getLogger("mpitrain")


@dataclass(frozen=True)
class Earlier:
    """The part of a run that a checkpoint holds, the same on every rank.

    Args:
        folder: of the checkpoint.
        manifest: of it.
        history: the records up to there.
        arrays: the small arrays; see ``carried_name``.
    """

    folder: Path
    manifest: Manifest
    history: tuple[HistoryRecord, ...] = ()
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def totals(self, workers: int) -> Totals:
        """What was applied, with counts of dropped gradients for as many workers as count them now."""
        totals = self.manifest.totals.copy()
        dropped = np.zeros(workers, np.int64)
        known = min(workers, totals.dropped.size)
        dropped[:known] = totals.dropped[:known]
        return replace(totals, dropped=dropped)


STATE = "state"


def carried_name(worker: int, index: int) -> str:
    """The small array that holds the ``index``-th thing that a worker carries on for itself."""
    return f"worker.{worker}.{index}"


def carried(arrays: Mapping[str, np.ndarray], worker: int) -> list[np.ndarray]:
    """What ``worker`` carried on; empty where there was no such worker."""
    found: list[np.ndarray] = []
    while (name := carried_name(worker, len(found))) in arrays:
        found.append(arrays[name])
    return found


def check_layout(found: Found, layout: Layout) -> None:
    """Whether the parameters of a checkpoint are those of ``layout``.

    Raises:
        InputError: naming the first difference.
    """
    was = found.manifest
    theirs, mine = _names(was.layout), _names([(e.name, e.shape) for e in layout.entries])
    differs = next((pair for pair in zip_longest(theirs, mine) if pair[0] != pair[1]), None)
    if differs is not None:
        told = [f"{v[0]} of shape {list(v[1])}" if v else "no further variable" for v in differs]
        what = f"it holds {told[0]} where this one has {told[1]}"
    elif was.dtype != layout.dtype.name:
        what = f"it holds {was.dtype}, and this one {layout.dtype.name}"
    else:
        return
    raise InputError(f"the checkpoint {found.path} is of another model ({what}): name its own")


def check_fits(earlier: Earlier, about: Description, config: RunConfig) -> None:
    """Whether a run goes on where the checkpoint stands.

    Raises:
        InputError: naming what differs.
    """
    manifest, where = earlier.manifest, f"the checkpoint {earlier.folder}"
    check_layout(Found(earlier.folder, manifest), about.layout)
    kind = manifest.state, manifest.totals.sums.size, manifest.undivided
    if kind != (about.state, about.sums, about.undivided):
        raise InputError(f"{where} is of another model (other state beside the parameters, or another loss)")
    if manifest.samples != about.samples:
        raise InputError(
            f"{where} is of a run on {manifest.samples:,} training samples of {manifest.dataset}, but "
            f"{about.dataset} has {about.samples:,}: name the same data"
        )
    seed = manifest.config.get("seed")
    if seed != config.seed:
        raise InputError(
            f"{where} is of a run with --seed {seed}, and this one has {config.seed}: the order of the data follows "
            "from it, so give the same"
        )
    if config.train_steps is not None and config.train_steps < manifest.step:
        raise InputError(
            f"{where} has {manifest.step:,} updates, more than --train-steps {config.train_steps}: train longer, or "
            "resume from an earlier one"
        )
    if config.epochs is not None and round(config.epochs * about.samples) < manifest.place.settled:
        raise InputError(
            f"{where} has seen {manifest.epoch:.2f} epochs, more than --epochs {config.epochs:g}: train longer, or "
            "resume from an earlier one"
        )


def differences(earlier: Earlier, config: RunConfig, about: Description, workers: int, servers: int) -> list[str]:
    """What is not as it was, for people."""
    was = earlier.manifest
    told = []
    if (was.mode, was.workers, was.servers) != (config.mode, workers, servers):
        told.append(
            f"{was.mode} with {was.workers} workers and {was.servers} servers became {config.mode} with {workers} and "
            f"{servers}"
        )
    if was.optimizer.name != about.optimizer.name:
        told.append(f"the optimizer was {was.optimizer.name}, and is {about.optimizer.name}, which begins anew")
    if was.dataset != about.dataset:
        told.append(f"the data set was called {was.dataset}, and is called {about.dataset}")
    left = max(0, was.workers - workers)
    if left and earlier.arrays.keys() - {STATE}:
        told.append(f"the random states of {left} workers are left out")
    return told


def restore_parameters(setup: Setup, earlier: Earlier, keeper: int) -> None:
    """Put the checkpoint's parameters into ``setup.initial`` on every rank; each must call it.

    Raises:
        AgreedExit: on every rank, when the checkpoint cannot be read.
    """
    world, layout = setup.world, setup.description.layout
    with phase(world, "reading the checkpoint"):
        if world.rank == keeper:
            packing = Packing(layout)
            whole = Holding(PARAMETERS, layout.dtype, packing.size, lambda: setup.initial, packing=packing)
            setup.initial[:] = 0
            Reader(earlier.folder, earlier.manifest).fill(whole, setup.initial)
    world.meet("sharing the parameters")
    for low in range(0, layout.size, MAX_COUNT):
        world.comm.Bcast(setup.initial[low : low + MAX_COUNT], keeper)


def restore_vectors(
    world: World,
    earlier: Earlier,
    holdings: Holdings,
    mine: list[Kept],
    optimizer: str,
    keeper: int,
) -> tuple[frozenset[str], list[str]]:
    """Give every rank its part of the checkpoint's vectors, but for the parameters; each must call it.

    Args:
        world: all ranks.
        earlier: the checkpoint.
        holdings: what the ranks hold.
        mine: what this rank holds.
        optimizer: class of the run's optimizer; another one's state is left out.
        keeper: reads for those who do not see the folder.

    Returns:
        The vectors that were restored, and what was not, for people; the same on every rank.

    Raises:
        AgreedExit: on every rank, when the checkpoint does not fit, or cannot be read.
    """
    manifest = earlier.manifest
    stored, wanted = manifest.vectors(), holdings.totals
    restored = frozenset(
        name
        for name in wanted
        if name in stored and (OPTIMIZER not in name or _is_whole(name, wanted, stored, manifest, optimizer))
    )
    with phase(world, "comparing with the checkpoint's vectors", meets=True):
        for name in sorted(restored):
            if stored[name] != wanted[name]:
                raise InputError(
                    f"the checkpoint {earlier.folder} is of another model (it has {stored[name]:,} elements of {name}, "
                    f"and this one {wanted[name]:,}): name its own"
                )
    reader = Reader(earlier.folder, manifest)
    chosen = [k for k in holdings.placed(mine) if k.holding.name in restored - {PARAMETERS}]
    with phase(world, "reading the checkpoint's vectors"):
        if holdings.sees[world.rank]:
            for kept in chosen:
                _restore(kept, partial(reader.fill, kept.holding))
    _restore_afar(world, reader, holdings, chosen, keeper)
    notes = []
    if left := sorted(stored.keys() - restored):
        notes.append(f"left out, because this run has no use for it: {', '.join(left)}")
    if anew := sorted(wanted.keys() - restored):
        notes.append(f"begun anew, because the checkpoint has none: {', '.join(anew)}")
    return restored, notes


def _is_whole(name: str, wanted: Iterable[str], stored: Iterable[str], manifest: Manifest, optimizer: str) -> bool:
    """Whether the checkpoint has all that the same optimizer keeps: a part of it would be worse than none."""
    prefix = name[: name.index(OPTIMIZER) + len(OPTIMIZER)]
    return manifest.optimizer.name == optimizer and {n for n in wanted if n.startswith(prefix)} <= set(stored)


def restore_counts(
    earlier: Earlier,
    restored: frozenset[str],
    portion: Portion | None,
    optimizer: str,
    worker: int,
    local: LocalSteps | None,
) -> None:
    """Let the optimizers of this rank count on from the checkpoint, where their state did.

    Args:
        earlier: the checkpoint.
        restored: vectors that were.
        portion: what the exchange holds on this rank.
        optimizer: class of the run's optimizer.
        worker: this rank's index among the workers.
        local: what the worker trains alone with, where it does.
    """
    manifest = earlier.manifest
    same = manifest.optimizer.name == optimizer
    if portion is not None and same and {OPTIMIZER + slot for slot in portion.optimizer.slot_types} <= restored:
        portion.optimizer.iterations = manifest.iterations
    was = manifest.local[worker] if 0 <= worker < len(manifest.local) else None
    if local is not None and was is not None:
        prefix = f"{WORKER}{worker}."
        if same and {prefix + OPTIMIZER + slot for slot in local.optimizer.slot_types} <= restored:
            local.optimizer.iterations = was.iterations
        local.begun = was.begun and prefix + PARAMETERS in restored


def restore_step(setup: Setup, earlier: Earlier, worker: int | None) -> None:
    """Let this rank's step go on from the checkpoint's state.

    Args:
        setup: its step, and the state that it begins with, become the checkpoint's.
        earlier: the checkpoint.
        worker: this rank's index among the workers; None on a server.

    Raises:
        AgreedExit: on every rank, when what a worker carries on is of another model.
    """
    with phase(setup.world, "going on from the model's state"):
        if setup.step is not None and worker is not None:
            setup.initial_state = earlier.arrays.get(STATE, setup.initial_state)
            own = carried(earlier.arrays, worker)
            # A worker that is new has random states of its own, but counters as another's.
            values = own or carried(earlier.arrays, 0)
            if values:
                setup.step.carry_on(values, seeds=bool(own))


def _restore(kept: Kept, fill: Callable[[np.ndarray], None]) -> None:
    memory = kept.holding.load()
    fill(memory)
    kept.store(memory)


def _restore_afar(world: World, reader: Reader, holdings: Holdings, chosen: list[Kept], keeper: int) -> None:
    """The keeper reads for those who do not see the folder."""
    if all(holdings.sees):
        return
    told = [(k.holding.name, k.holding.dtype, k.holding.start, k.holding.stop) for k in chosen]
    wanted = world.gather_all([] if holdings.sees[world.rank] else told, "reading the checkpoint's vectors")
    for rank, parts in enumerate(wanted):
        for index, (name, dtype, low, high) in enumerate(parts):
            if world.rank == keeper:
                pieces = (piece.astype(dtype, copy=False).view(np.uint8) for piece in reader.read(name, low, high))
                travelling.send(world, pieces, rank)
            elif world.rank == rank:
                _restore(chosen[index], partial(_take, world, keeper, chosen[index].holding))


def _take(world: World, keeper: int, holding: Holding, memory: np.ndarray) -> None:
    place = holding.start
    for piece in travelling.receive(world, keeper):
        values = piece.view(holding.dtype)
        scatter(holding, memory, place, values)
        place += values.size


def _names(layout: Iterable[tuple[str, Sequence[int]]]) -> list[tuple[str, tuple[int, ...]]]:
    """Without the numbers that say how many layers a process has made."""
    return [(re.sub(r"_\d+(?=/|$)", "", name), tuple(shape)) for name, shape in layout]
