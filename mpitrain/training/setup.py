"""Getting ready: data, model and layout on the workers, and what all ranks must know of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitrain.cluster import cores
from mpitrain.cluster.roles import Roles, assign
from mpitrain.cluster.world import MAX_COUNT, World
from mpitrain.config import RunConfig
from mpitrain.data.mnist import Dataset, load
from mpitrain.errors import InputError
from mpitrain.exchange.allreduce.backends import BACKENDS, AllReduceChoice, usable
from mpitrain.exchange.allreduce.choose import Measured, choose_allreduce
from mpitrain.exchange.policy import Policy
from mpitrain.exchange.tickets import Ticket
from mpitrain.models import MODELS
from mpitrain.parameters.adding import Adding
from mpitrain.parameters.layout import Layout, aligned_zeros
from mpitrain.parameters.optimizers import OptimizerSpec, SliceOptimizer, is_elementwise, make_optimizer
from mpitrain.reporting.stream import say
from mpitrain.training.feed import Feed
from mpitrain.training.keras_start import start_tensorflow
from mpitrain.training.phases import check_same, phase

if TYPE_CHECKING:
    from mpitrain.parameters.keras_step import KerasStep


AS_BEFORE = "as before"
WORTH_IT = 0.95
"""XLA must save so much of a step's time to be chosen: it costs memory, and time to compile."""


@dataclass(frozen=True)
class Description:
    """What the chief has found out about the run's model and data, the same on every rank.

    Args:
        layout: of the parameter vector.
        metrics: names of the metric sums.
        state: length of the float state.
        undivided: whether the loss is a sum over the batch.
        optimizer: with the arguments that the user's model gave it.
        rate: base learning rate.
        batch_size: samples per worker and step.
        dataset: its name.
        samples: in an epoch.
        versions: of the libraries that compute.
    """

    layout: Layout
    metrics: tuple[str, ...]
    state: int
    undivided: bool
    optimizer: OptimizerSpec
    rate: float
    batch_size: int
    dataset: str
    samples: int
    versions: dict[str, str]

    @property
    def sums(self) -> int:
        """Length of ``StepResult.sums``."""
        return 3 + len(self.metrics)


@dataclass
class Setup:
    """All that a run needs on this rank; ``step`` and ``feed`` are None where nobody computes."""

    world: World
    config: RunConfig
    description: Description
    initial: np.ndarray
    threads: int
    first_worker: int
    step: KerasStep | None = None
    feed: Feed | None = None
    initial_state: np.ndarray | None = None
    jit: bool = False
    jit_reason: str = "as asked"
    allreduce: Measured = field(default_factory=lambda: Measured(AllReduceChoice()))

    @property
    def full_batch(self) -> int:
        """Samples in a full batch of one worker."""
        return min(self.description.batch_size, self.description.samples)

    @property
    def step_size(self) -> int:
        """Samples of one worker's full step: of all batches whose gradients it adds up."""
        return self.description.batch_size * self.config.accumulate * self.config.local_steps


def prepare(
    world: World,
    config: RunConfig,
    workers: tuple[int, ...],
    model: Any = None,
    data: Dataset | None = None,
) -> Setup:
    """Read the data and make the model on the workers; agree on what came out.

    Args:
        world: all ranks; each must call it.
        config: validated.
        workers: ranks that compute in any of the modes to be run.
        model: a Keras model, or a function that makes one; by default what ``config.model`` names.
        data: by default what ``config.dataset`` and ``config.data_dir`` name.

    Raises:
        AgreedExit: on every rank, when any of them cannot get ready.
    """
    works = world.rank in workers
    with phase(world, "comparing the configuration", meets=True):
        check_same(world, "configuration", config.as_dict())
    threads = set_threads(world, config, workers)
    feed: Feed | None = None
    dataset: Dataset | None = None
    with phase(world, "reading the data"):
        if works:
            dataset = data or load(config.dataset, None if config.data_dir is None else Path(config.data_dir))
            if len(workers) > len(dataset.train):
                raise InputError(
                    f"there are {len(workers)} workers but only {len(dataset.train)} training samples in "
                    f"{dataset.name}: start fewer ranks or use more data"
                )
    made: tuple[KerasStep, Description] | None = None
    with phase(world, "making the model"):
        if works:
            assert dataset is not None
            made = _make(config, model, dataset, workers.index(world.rank), threads)
    description: Description = world.share(made[1] if made else None, workers[0], "sharing the model's layout")
    with phase(world, "comparing layouts", meets=True):
        digests = world.gather_all(made[1].layout.digest() if made else None, "comparing layouts")
        for rank, digest in enumerate(digests):
            if digest not in (None, description.layout.digest()):
                raise InputError(
                    f"the model function made another model on {world.name(rank)} than on {world.name(workers[0])}: "
                    "it must make the same one on every rank"
                )
    initial = aligned_zeros(description.layout.size, description.layout.dtype)
    step = made[0] if made else None
    if step is not None:
        initial[:] = step.initial_parameters()
        feed = Feed(dataset, config.seed, description.batch_size)  # type: ignore[arg-type]
    world.meet("sharing the initial parameters")
    for low in range(0, initial.size, MAX_COUNT):
        world.comm.Bcast(initial[low : low + MAX_COUNT], workers[0])
    state = None if step is None else step.state.copy()
    return Setup(world, config, description, initial, threads, workers[0], step, feed, state)


def choose_sum(setup: Setup, stored: Mapping[str, str] | None = None) -> None:
    """Settle how gradients are summed in all-reduce; the same on every rank, and printed and stored as such.

    Args:
        setup: gets the choice.
        stored: what an earlier part of the run chose on as many ranks; it holds where it can be done here.

    Raises:
        AgreedExit: on every rank, when what was asked for cannot be done.
    """
    config, about = setup.config, setup.description
    if stored and (config.allreduce, config.shard_optimizer) == ("auto", "auto"):
        backend, owners = stored.get("allreduce", ""), stored.get("shard_optimizer") == "on"
        if backend in BACKENDS and not usable(backend, setup.world):
            setup.allreduce = Measured(AllReduceChoice(backend, owners), reason=AS_BEFORE)
            return
    with phase(setup.world, "choosing an all-reduce", meets=True):
        setup.allreduce = choose_allreduce(
            setup.world,
            about.layout,
            config.allreduce,
            config.shard_optimizer,
            steps_alone(config) or is_elementwise(about.optimizer),
            lambda part: shared_optimizer(setup, policy_of(config, "allreduce", setup.world.size), part),
            config.wire_dtype,
        )


def choose(setup: Setup, size: int, stored: Mapping[str, str] | None = None) -> None:
    """Trace the gradient step, and decide by measuring whether XLA compiles it, the same on all ranks.

    Args:
        setup: its step is made ready.
        size: samples of a full batch, for which alone XLA is used; the odd last one of an epoch does without it.
        stored: what an earlier part of the run chose.

    Raises:
        AgreedExit: on every rank, when the model cannot be traced on any.
    """
    measured: tuple[float | None, float | None, str] | None = None
    step, feed, jit = setup.step, setup.feed, setup.config.jit
    if jit == "auto" and stored and "jit" in stored:
        jit, setup.jit_reason = ("on" if stored["jit"] == "on" else "off"), AS_BEFORE
    with phase(setup.world, "tracing the gradient step"):
        if step is not None and feed is not None:
            batch = feed.batch(Ticket(0, 0, 0, size))
            if jit == "auto":
                from mpitrain.parameters.keras_jit import measure_jit

                found = measure_jit(step, batch, timed=setup.world.rank == setup.first_worker)
                measured = found.plain, found.compiled, found.reason
            else:
                step.jit = jit == "on"
                step.prepare(batch)
    setup.jit = jit == "on"
    if jit == "auto":
        # The others sleep here meanwhile, and leave the processor to the one that measures.
        plain, compiled, setup.jit_reason = setup.world.share(measured, setup.first_worker, "choosing by measurement")
        setup.jit = plain is not None and compiled is not None and compiled < WORTH_IT * plain
    if step is not None:
        step.jit = setup.jit


def set_threads(world: World, config: RunConfig, workers: tuple[int, ...]) -> int:
    """Share the node's visible cores among its workers, and limit this process's thread pools to its share."""
    busy = [rank in workers for rank in world.node]
    threads = config.threads or cores.share(world.masks, busy, world.node.index(world.rank))
    if config.threads is None and (limit := cores.slurm_cores()) is not None:
        threads = min(threads, limit)
    if not cores.set_in_time() and world.rank == workers[0]:
        say(
            "mpitrain: warning: TensorFlow was imported before mpitrain, which came too late to set the number of "
            "threads: import mpitrain first",
            to_errors=True,
        )
    cores.limit_threads(threads, config.allow_gpu)
    return threads


def _make(config: RunConfig, model: Any, dataset: Dataset, worker: int, threads: int) -> tuple[KerasStep, Description]:
    start_tensorflow(threads)
    from mpitrain.training.keras_setup import make_step

    step, optimizer, rate, batch_size, versions = make_step(config, model, dataset, worker)
    description = Description(
        step.layout,
        step.metric_names,
        step.state.size,
        step.undivided,
        optimizer,
        rate,
        batch_size,
        dataset.name,
        len(dataset.train),
        versions,
    )
    return step, description


def policy_of(config: RunConfig, mode: str, workers: int) -> Policy:
    """What ``config`` asks of ``workers`` workers in ``mode``, as far as that has the option."""
    if mode == "ps-sync":
        return Policy(mode, workers, config.backup_workers, pipeline=config.pipeline)
    if mode != "ps-async":
        return Policy(mode, workers)
    return Policy(
        mode,
        workers,
        staleness_bound=config.staleness_bound,
        soft_quorum=config.soft_quorum,
        damping=config.staleness_damping,
        pipeline=config.pipeline,
        compensation=config.delay_compensation,
        adaptive=config.adaptive_compensation,
    )


def steps_alone(config: RunConfig) -> bool:
    """Whether each worker applies an optimizer of its own, and the ranks exchange differences of parameters."""
    return config.local_steps > 1 or config.elastic is not None


def shared_optimizer(setup: Setup, policy: Policy, part: slice) -> SliceOptimizer:
    """What applies to a slice of the shared parameters that on which the workers of an update have agreed."""
    about, config = setup.description, setup.config
    if not steps_alone(config):
        return make_optimizer(about.optimizer, about.layout, part.start, part.stop)
    factor = 1.0 if policy.together else policy.sharing / policy.workers
    if config.elastic is not None:
        factor = float(policy.sharing)
    return Adding(part.stop - part.start, about.layout.dtype, factor)


def roles_of(config: RunConfig, mode: str, world: World) -> Roles:
    """Who serves and who works in ``mode``.

    Raises:
        InputError: where no worker, or no server, would be left.
    """
    return assign(mode, world.size, config.servers, world.leaders if config.server_placement == "spread" else ())


def transport_of(config: RunConfig, world: World) -> str:
    """``mpi``, ``shared`` or ``both``, as asked for or as the ranks lie.

    Raises:
        InputError: where ranks that share no memory are to go through it.
    """
    far = [rank for rank, leader in enumerate(world.leaders) if leader != world.leaders[0]]
    if config.transport == "shared" and far:
        raise InputError(
            f"--transport shared goes through the memory of one node, but {world.name(0)} and {world.name(far[0])} "
            "share none: use --transport auto or both, or start all ranks on one node"
        )
    if config.transport != "auto":
        return config.transport
    if not far:
        return "shared"
    return "both" if len(set(world.leaders)) < world.size else "mpi"


def defaults_of(config: RunConfig) -> RunConfig:
    """The configuration with what the named model implies filled in, as far as that is known without making it."""
    spec = MODELS.get(config.model)
    changes: dict[str, Any] = {}
    if config.train_steps is None and config.epochs is None:
        changes["epochs"] = 2.0
    if spec is not None:
        if config.batch_size is None:
            changes["batch_size"] = spec.batch_size
        if config.learning_rate is None and config.optimizer in (None, spec.optimizer):
            changes["learning_rate"] = spec.learning_rate
        if config.optimizer is None:
            changes["optimizer"] = spec.optimizer
    return config.replace(**changes)
