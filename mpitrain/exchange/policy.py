"""How the workers of a run share its updates: a mode, and what was asked beside it, the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass

from mpitrain.errors import InputError


@dataclass(frozen=True)
class Policy:
    """A mode with its options.

    Args:
        mode: a name in ``MODES``.
        workers: number of workers.
        backup_workers: in a synchronous mode with servers, how many gradients of a step are not waited for.
        staleness_bound: in the asynchronous mode, how far a worker's clock may lead when it begins a step; None for
            any distance.
        soft_quorum: in the asynchronous mode, gradients that make an update, whoever sent them.
        damping: whether a gradient is divided by its staleness.
        compensation: lambda of the correction for what has been updated since a gradient's parameters; None for none.
        adaptive: whether lambda is divided by the root of the mean square of the gradients.
        pipeline: with servers, whether a worker computes its next gradient while the one before is under way.

    Raises:
        InputError: where no worker would be left to wait for.
    """

    mode: str
    workers: int
    backup_workers: int = 0
    staleness_bound: int | None = None
    soft_quorum: int = 1
    damping: bool = False
    compensation: float | None = None
    adaptive: bool = False
    pipeline: bool = False

    def __post_init__(self) -> None:
        if self.backup_workers >= self.workers:
            raise InputError(
                f"--backup-workers is {self.backup_workers} but must be below the number of workers, "
                f"{self.workers}, so that an update has a gradient to wait for: use fewer, or start more ranks"
            )

    @property
    def together(self) -> bool:
        """Whether several workers share each update, so that all state is agreed on with it."""
        return self.mode != "ps-async"

    @property
    def depth(self) -> int:
        """Tickets that a worker may hold at once."""
        return 2 if self.pipeline else 1

    @property
    def sharing(self) -> int:
        """Gradients that make one update."""
        return self.workers - self.backup_workers if self.together else self.soft_quorum

    @property
    def parts(self) -> int:
        """Workers that share one ticket. With backup workers nobody knows beforehand whose gradient will count."""
        return self.workers if self.together and not self.backup_workers else 1

    @property
    def tickets(self) -> int:
        """Tickets that make one update."""
        return self.sharing // self.parts
