"""Every fault at every rank, in every mode, at every moment: what must come of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mpitrain.errors import ExitCode
from tests.faults.program import AT_STEP, AT_VERSION

RANKS, SERVERS, STEPS, SAVED = 4, 2, 20, 5
STALL, START = 5.0, 10.0
"""Seconds given as ``--stall-timeout`` and ``--start-timeout``."""

SOON, AFTER_LIMIT = 5.0, 6.0
"""Seconds within which everything must be gone: after a fault that shows at once, and after the limit of the others."""

CORE_FAULTS = ("raise", "exit", "kill", "stop", "loop", "slow")
MORE_FAULTS = ("thread", "memory", "vanish", "crash", "freeze", "pause")
FAULTS = {
    "raise": "an exception",
    "thread": "an exception in a thread of the user's",
    "memory": "`MemoryError`",
    "exit": "`sys.exit(3)`",
    "vanish": "`os._exit(0)`",
    "kill": "SIGKILL",
    "crash": "SIGSEGV",
    "stop": "SIGSTOP",
    "loop": "an endless loop",
    "freeze": "a C call that never returns and holds Python's lock",
    "slow": "more than a third of the limit for one step",
    "pause": "SIGSTOP, and SIGCONT within the limit",
}
CORE_MOMENTS = ("start", "step", "evaluation", "finalize")
MOMENTS = {
    "before": "before MPI starts",
    "start": "making the model or the optimizer",
    "step": "in a step",
    "evaluation": "in an evaluation",
    "checkpoint": "while a checkpoint is written",
    "saving": "saving the model",
    "after": "after the run",
    "finalize": "in `MPI_Finalize`",
}
LOCAL_STEPS = 4
VARIANTS = {
    "ps-sync-backup": ("--mode", "ps-sync", "--backup-workers", "1"),
    "ps-async-bound": ("--mode", "ps-async", "--staleness-bound", "1"),
    "ps-sync-messages": ("--mode", "ps-sync", "--transport", "mpi"),
    "ps-async-soft": ("--mode", "ps-async", "--soft-quorum", "3", "--staleness-damping"),
    "ps-async-compensated": ("--mode", "ps-async", "--delay-compensation", "0.04", "--transport", "mpi"),
    "allreduce-local": ("--mode", "allreduce", "--local-steps", str(LOCAL_STEPS)),
    "ps-async-pipeline": ("--mode", "ps-async", "--pipeline"),
    "ps-sync-elastic": ("--mode", "ps-sync", "--elastic", "0.3"),
    "allreduce-mpi": ("--mode", "allreduce", "--allreduce", "mpi"),
    "allreduce-ring": ("--mode", "allreduce", "--allreduce", "ring"),
    "allreduce-halving-doubling": ("--mode", "allreduce", "--allreduce", "halving-doubling"),
}
"""Where ranks wait for other ranks, or otherwise, than in the plain modes; a fault in a step is what may differ."""
MODES = ("allreduce", "ps-sync", "ps-async", *VARIANTS)
ROLES = {"rank 0": 0, "server": 1, "worker": 2, "last rank": 3}

_RAISED = ("raise", "thread", "memory", "exit")
_ENDLESS = ("stop", "loop", "freeze")
PASSING = ("slow", "pause")


@dataclass(frozen=True)
class Cell:
    """One fault of one rank in one mode at one moment."""

    fault: str
    role: str
    mode: str
    moment: str

    def __str__(self) -> str:
        return f"{self.fault}-{self.role.replace(' ', '')}-{self.mode}-{self.moment}"

    @property
    def rank(self) -> int:
        """The rank that suffers."""
        return ROLES[self.role]

    @property
    def possible(self) -> bool:
        """Whether there is such a case."""
        if self.mode.startswith("allreduce") and self.role == "server":
            return False
        if self.mode.startswith("allreduce-") and self.role == "last rank":
            return False  # each rank does there what every other does
        if self.mode in VARIANTS and (self.fault not in ("kill", "stop") or self.moment != "step"):
            return False  # all else has nothing to do with how ranks wait
        if self.moment in ("before", "after") and self.mode != "ps-sync":
            return False  # outside of the run the mode makes no difference
        if self.moment == "before" and self.fault in _RAISED:
            return False  # nothing of ours runs yet: Python says it
        # After the run a script of the user's may take as long as it likes, on each rank.
        return not (self.moment == "after" and self.fault == "loop")

    @property
    def limit(self) -> float:
        """Seconds without a sign of progress that the job puts up with at this moment."""
        return START if self.moment in ("before", "start", "after") else STALL

    @property
    def seconds(self) -> float:
        """How long a fault lasts that passes: more than a third of the limit, and less than the limit."""
        return 0.5 * self.limit

    @property
    def codes(self) -> tuple[int, ...]:
        """What mpirun may end with."""
        if self.fault == "vanish" and self.moment == "before":
            return 1, int(ExitCode.STALLED)  # to Open MPI's mpirun it has done its work: the others wait in MPI_Init
        if self.fault == "vanish":
            return 1, int(ExitCode.PEER_FAILED)  # mpirun's own code, unless another rank's is faster
        if self.fault == "exit" and self.moment == "after":
            return (3,)
        codes: dict[str, int] = {"memory": ExitCode.OUT_OF_MEMORY, "kill": 128 + 9, "crash": 128 + 11}
        codes |= dict.fromkeys(("raise", "thread", "exit"), ExitCode.OWN_FAILURE)
        codes |= dict.fromkeys(_ENDLESS, ExitCode.STALLED) | dict.fromkeys(PASSING, ExitCode.DONE)
        return (int(codes[self.fault]),)

    @property
    def status(self) -> str | None:
        """What ``summary.json`` must say; None where there is none yet."""
        if self.fault in PASSING or self.moment in ("after", "finalize"):
            return "complete"
        if self.moment == "before":
            return None
        return "stalled" if self.fault in _ENDLESS else "failed"

    @property
    def promised(self) -> float | None:
        """Seconds from the fault until nothing of the job is left; None where the run goes on."""
        if self.fault in PASSING:
            return None
        waits = self.fault in _ENDLESS or (self.fault == "vanish" and self.moment == "before")
        return self.limit + AFTER_LIMIT if waits else SOON

    @property
    def agreed(self) -> bool:
        """Whether all ranks agree on the end, with a sentence of one of them: in a phase of the start."""
        return self.fault == "memory" and self.moment == "start"

    @property
    def traceback(self) -> bool:
        """Whether a traceback says what went wrong; it must come first."""
        if self.agreed:
            return False
        return self.fault in _RAISED and not (self.fault == "exit" and self.moment == "after")

    def told(self, host: str) -> list[str]:
        """What standard error must contain."""
        if self.moment == "before" or (self.moment == "after" and self.fault in ("exit", *PASSING)):
            return []
        words = [f"rank {self.rank}: memory ran out" if self.agreed else f"rank {self.rank} on {host}"]
        if self.fault == "slow":
            words.append("mpitrain: warning: ")
        in_step = self.mode == "ps-sync" or self.mode.startswith("allreduce")
        at_step = AT_STEP // LOCAL_STEPS if self.mode == "allreduce-local" else AT_STEP
        at = {"step": at_step if in_step else None, "evaluation": AT_VERSION, "checkpoint": AT_VERSION}
        step = at.get(self.moment)
        if step is not None and self.fault not in PASSING:
            words.append(f"at step {step}")
        if self.moment == "checkpoint" and self.fault not in PASSING:
            words.append("is saved: ")
        return words


def cells() -> list[Cell]:
    """All that are possible; beyond the core faults on two ranks, as a rank among the first and one among the last."""
    every = itertools.starmap(Cell, itertools.product(FAULTS, ROLES, MODES, MOMENTS))
    return [c for c in every if c.possible and (c.fault in CORE_FAULTS or c.role in ("rank 0", "worker"))]


def pairs(cell: Cell) -> Iterator[tuple[str, ...]]:
    """The pairs of values of a cell that the short suite must cover.

    Of the core, each with each; of the rest, each with the mode. What passes must also do so where only others wait.
    """
    core = cell.fault in CORE_FAULTS and cell.moment in CORE_MOMENTS
    if core:
        yield from itertools.combinations((cell.fault, cell.role, cell.mode, cell.moment), 2)
    if cell.fault in PASSING and cell.moment == "after":
        yield cell.fault, cell.moment
    yield cell.fault, cell.mode
    yield cell.mode, cell.moment


def covering(wanted: Iterable[Cell]) -> list[Cell]:
    """Few cells that cover all :func:`pairs` of the ``wanted``, always the same ones."""
    left = list(wanted)
    missing = {pair for cell in left for pair in pairs(cell)}
    chosen: list[Cell] = []
    while missing:
        best = max(left, key=lambda cell: len(missing.intersection(pairs(cell))))
        chosen.append(best)
        missing.difference_update(pairs(best))
    return chosen
