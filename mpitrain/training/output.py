"""What a run leaves behind: its directory, the logs of its ranks, the model, and the summary."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mpitrain.checkpoints.find import checkpoints_of
from mpitrain.checkpoints.lock import RunLock
from mpitrain.checkpoints.reader import Reader
from mpitrain.cluster import watchdog
from mpitrain.cluster.agreement import AgreedExit
from mpitrain.cluster.ending import End
from mpitrain.cluster.launcher import read_launch
from mpitrain.cluster.roles import Roles
from mpitrain.cluster.waiting import now
from mpitrain.cluster.world import World
from mpitrain.config import RunConfig
from mpitrain.errors import ExitCode
from mpitrain.exchange.tickets import TicketBook
from mpitrain.reporting.files import write_whole, writing
from mpitrain.reporting.progress import Progress, Silent, make_progress
from mpitrain.reporting.rundir import write_config
from mpitrain.reporting.stream import say
from mpitrain.reporting.summary import BrokenOff, render_summary, write_summary
from mpitrain.training.phases import phase
from mpitrain.training.resuming import Earlier
from mpitrain.training.run import Outcome
from mpitrain.training.rundirs import RunDirectory, open_comparison_directory, open_run_directory
from mpitrain.training.setup import Description, Setup, transport_of

log = logging.getLogger("mpitrain")


class Output:
    """The run directory, seen from one rank; every rank makes it and calls its methods together.

    Args:
        world: all ranks.
        roles: the keeper writes; the chief has the model.
        config: names the directory.
        comparison: whether the directory is that of several runs.
    """

    def __init__(self, world: World, roles: Roles, config: RunConfig, comparison: bool = False) -> None:
        self._comparison = comparison
        self._world, self._roles, self._config = world, roles, config
        self.run_dir: Path | None = None
        """On the keeper; None elsewhere."""
        self.earlier: Earlier | None = None
        """What the run goes on from."""
        self._lock: RunLock | None = None
        token, arrays = secrets.token_hex(8), {}
        opened: RunDirectory | None = None
        with phase(world, "making the run directory"):
            if world.rank == roles.keeper:
                opened = (open_comparison_directory if comparison else open_run_directory)(config, _tell)
                self.run_dir, self._lock = opened.path, opened.lock
                write_whole(self.run_dir / ".token", token.encode())
                if opened.found is not None:
                    arrays = Reader(*opened.found).state()
        self.path: Path
        self.path, token, found, history = world.share(
            opened and (opened.path.absolute(), token, opened.found, opened.history),
            roles.keeper,
            "naming the run directory",
        )
        if found is not None:
            arrays = world.share(arrays, roles.keeper, "sharing the model's state")
            self.earlier = Earlier(found.path, found.manifest, history, arrays)
        self._handler = self._open_log(token)
        log.setLevel(logging.INFO)
        log.addHandler(self._handler)
        log.propagate = False
        world.meet("opening logs")
        if self.run_dir is not None:
            (self.run_dir / ".token").unlink()
        log.info(
            "rank %d of %d on %s, process %d, %s",
            world.rank,
            world.size,
            os.uname().nodename,
            os.getpid(),
            roles.describe(),
        )

    @property
    def keeper(self) -> int:
        """The rank that has the run directory."""
        return self._roles.keeper

    @property
    def sees(self) -> bool:
        """Whether this rank sees the run directory."""
        return self._sees

    def resolved(self, setup: Setup, book: TicketBook, effective: float, progress: Progress) -> None:
        """Store the configuration with everything that was found out, and tell what will be done.

        Args:
            setup: ready.
            book: the tickets.
            effective: learning rate at full height.
            progress: is told.
        """
        about, config = setup.description, self._config
        values = config.as_dict() | {
            "batch_size": about.batch_size,
            "learning_rate": about.rate,
            "optimizer": about.optimizer.name.lower(),
            "jit": "on" if setup.jit else "off",
            "run_dir": None,
            "resume": None,
        }
        if self._roles.servers:
            values["transport"] = transport_of(config, self._world)
        else:
            choice = setup.allreduce.choice
            values |= {"allreduce": choice.backend, "shard_optimizer": "on" if choice.owners_update else "off"}
            progress.note(setup.allreduce.describe())
        self.store(values)
        cores = len(frozenset.union(*self._world.masks))
        told = self._world.gather_all((cores, setup.threads), "telling who works where")
        lines = self._roles.by_node(self._world, *zip(*told, strict=True))
        for line in lines if len(lines) > 1 else []:
            progress.note(line)
        log.info("%s", "; ".join(lines))
        progress.note(
            f"{about.layout.parameter_count:,} parameters, {about.optimizer.name.lower()} at an effective learning "
            f"rate of {effective:g}, XLA {values['jit']} ({setup.jit_reason}), "
            f"{setup.threads} thread{'s' * (setup.threads > 1)} per worker"
        )
        progress.note(
            f"{about.samples:,} training samples; {_batches(config, about)} per worker and step, {book.full_update} "
            f"per update; {-(-book.per_epoch // book.per_update):,} updates an epoch, {book.updates:,} in all"
        )
        progress.note(f"writing to {self.path}")
        log.info("configuration %s", values)

    def store(self, values: dict[str, Any]) -> None:
        """Write the configuration, on the keeper."""
        with phase(self._world, "writing the configuration"):
            if self.run_dir is not None:
                write_config(self.run_dir, values)

    @contextmanager
    def accounting(self) -> Iterator[None]:
        """Whatever ends the run inside the block, ``summary.json`` says so, from a rank that can still write it."""
        take_back = watchdog.on_end(self._broken_off)
        watchdog.advise(self.advice)
        try:
            yield
        except AgreedExit as end:
            take_back()
            if end.code != ExitCode.PREEMPTED:
                self._broken_off(
                    End("failed", int(end.code or 0), end.reason, end.rank, now.step, watchdog.known_peaks())
                )
            if self.run_dir is not None:
                if advice := self.advice():
                    _tell(advice)
                if self._lock is not None:
                    self._lock.release()
            raise
        # After any other exception the hooks end this process, and the watchdog needs what it was told.
        take_back()

    def advice(self) -> str:
        """How to go on from the newest whole checkpoint, in a sentence; nothing where none is known of here."""
        if self._comparison:
            again = f"the same command with --resume {shlex.quote(str(self.path))}"
            return f"{again} goes on with the runs that are not complete" if self._sees else ""
        steps = checkpoints_of(self.path).steps() if self._sees else []
        return f"step {steps[-1]} is saved: {resume_by(self.path, self._world.size)}" if steps else ""

    def _broken_off(self, end: End) -> None:
        log.error("%s", end.cause)
        if self.run_dir is not None or (self._roles.keeper in end.missing and self._sees):
            told = BrokenOff(
                status=end.status,
                cause=end.cause,
                exit_code=end.code,
                rank=end.rank,
                step=end.step,
                mode=self._config.mode,
                model=self._config.model,
                peak_memory=end.peaks,
                advice=self.advice() or None,
            )
            # Where a network fell apart both sides believe the other to be gone: the keeper's word counts.
            # A launcher that interrupts the run kills before a busy disk would have answered.
            write_summary(self.path, told, replace=self.run_dir is not None, durable=end.status != "interrupted")

    def end_if_preempted(self, outcome: Outcome) -> None:
        """Leave together where a signal has asked for the end.

        Raises:
            AgreedExit: on every rank.
        """
        if outcome.summary.status == "preempted":
            self.close()
            self._world.meet("ending as preempted")
            raise AgreedExit(ExitCode.PREEMPTED, str(outcome.summary.cause))

    def save(self, setup: Setup, outcome: Outcome) -> None:
        """Write the trained model: the chief makes the file's bytes, the keeper writes them."""
        world, roles = self._world, self._roles
        content: bytes | None = None
        if world.rank == roles.chief:
            from mpitrain.training.keras_setup import saved_model

            assert setup.step is not None
            assert outcome.parameters is not None
            assert outcome.state is not None
            content = saved_model(setup.step, outcome.parameters, outcome.state)
        world.meet("saving the model")
        if roles.chief != roles.keeper:
            if world.rank == roles.chief:
                world.comm.send(content, roles.keeper)
            elif world.rank == roles.keeper:
                content = world.comm.recv(source=roles.chief)
        with phase(world, "writing the model"):
            if self.run_dir is not None:
                assert content is not None
                self._restore_folder()
                write_whole(self.run_dir / "model.keras", content)

    def _restore_folder(self) -> None:
        """What was trained is not lost where somebody has removed the run directory meanwhile."""
        if not self.path.exists():
            with writing(self.path):
                self.path.mkdir(parents=True)
            _tell(
                f"warning: {self.path} was removed while the run wrote to it: it is made anew for the model and summary"
            )

    def report(self, progress: Progress, outcome: Outcome, run_dir: Path | None) -> None:
        """Write the summary to ``run_dir`` (on the keeper), and print it on the rank that speaks."""
        with phase(self._world, "writing the summary"):
            if run_dir is not None:
                write_summary(run_dir, outcome.summary)
        progress.note("")
        progress.note(render_summary(outcome.summary))
        if self._config.from_tf1 and outcome.summary.status == "complete":
            progress.note(tf1_line(outcome))
        log.info("ended after %d updates", outcome.summary.updates)

    def close(self) -> None:
        """End the logs; those of ranks that do not see the directory travel to the keeper, which gives it free."""
        log.removeHandler(self._handler)
        self._handler.close()
        unseen = self._handler.lines if isinstance(self._handler, _MemoryHandler) else None
        for rank, lines in enumerate(self._world.gather_all(unseen, "gathering logs")):
            if lines is not None and self.run_dir is not None:
                file = _log_file(self.run_dir, rank)
                before = file.read_bytes() if self.earlier is not None and file.exists() else b""
                write_whole(file, before + "".join(lines).encode())
        if self._lock is not None:
            self._lock.release()

    def _open_log(self, token: str) -> logging.Handler:
        self._sees = False
        with suppress(OSError):
            self._sees = (self.path / ".token").read_text() == token
        handler = _FileHandler(_log_file(self.path, self._world.rank)) if self._sees else _MemoryHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        return handler


def resume_by(run_dir: Path, ranks: int) -> str:
    """What goes on with a run, as a person would type it."""
    program = Path(sys.argv[0])
    if program.name not in ("mpitrain", "__main__.py"):
        return f"start {program.name} again with resume={str(run_dir)!r}"
    launcher = "srun -n" if read_launch().under_srun else "mpirun -np"
    return f"`{launcher} {ranks} python -m mpitrain --resume {shlex.quote(str(run_dir))}` goes on from there"


def _tell(text: str) -> None:
    say(f"mpitrain: {text}", to_errors=True)


def tf1_line(outcome: Outcome) -> str:
    """The closing line of the TensorFlow 1 programs, whose mlp's loss was a sum over the 5,000 validation images."""
    summary, sums = outcome.summary, outcome.validation_sums
    assert sums is not None
    entropy = sums[0] if summary.model == "mlp" else sums[0] / sums[1]
    return f"After {summary.updates} training step(s), validation cross entropy = {entropy:g}"


class _FileHandler(logging.FileHandler):
    """A full disk must not end a run for want of a line in a log, and needs no traceback for each."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class _MemoryHandler(logging.Handler):
    """Keeps lines until the end, on a host that does not see the run directory."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record) + "\n")


@contextmanager
def open_progress(world: World, roles: Roles, book: TicketBook, evaluated: str) -> Iterator[Progress]:
    """The run's voice on the chief, silence elsewhere; ``evaluated`` names the split that is evaluated on."""
    if world.rank != roles.chief:
        yield Silent()
        return
    progress = make_progress(stream=sys.stdout, total_samples=book.samples_after(book.updates), evaluated=evaluated)
    try:
        yield progress
    finally:
        progress.close()


def _log_file(run_dir: Path, rank: int) -> Path:
    folder = run_dir / f"rank.{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "log.txt"


def _batches(config: RunConfig, about: Description) -> str:
    batches = config.accumulate * config.local_steps
    several = f"{batches} batches of " if batches > 1 else ""
    return f"{several}{about.batch_size}"
