"""``compare``: several modes on the same number of samples, side by side."""

from __future__ import annotations

from pathlib import Path

from mpitrain.cli.train import Options, World
from mpitrain.config import RunConfig


def compare(
    options: Options = RunConfig(),  # noqa: B008
    *,
    modes: str = "allreduce,ps-sync,ps-async",
    target_accuracy: float = 0.97,
    config: Path | None = None,
    dry_run: bool = False,
    world: World = None,
) -> int:
    """Train in several modes one after another on the same samples, and print one table.

    Args:
        options: The runs; their mode is set by MODES.
        modes: The modes, separated by commas.
        target_accuracy: Validation accuracy whose time is compared.
        config: TOML file with options by name (train_steps = 500).
        dry_run: Print the resolved configuration and end.
        world: The ranks.
    """
    from mpitrain.training.compare import compare_modes

    compare_modes(world, options, modes.split(","), target_accuracy, dry_run)
    return 0


compare.collective = True  # type: ignore[attr-defined]
