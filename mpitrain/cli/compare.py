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
    seeds: int = 1,
    config: Path | None = None,
    dry_run: bool = False,
    world: World = None,
) -> int:
    """Train in several modes one after another on the same samples, and print one table.

    Args:
        options: The runs; their mode is set by MODES.
        modes: What to compare, separated by commas: modes with options of their own as in ps-sync+backup=1 or
            ps-async+bound=2+damping, local=8 (steps, with allreduce), elastic=0.1 (with ps-async).
        target_accuracy: Validation accuracy whose time is compared.
        seeds: Runs of each, with consecutive seeds.
        config: TOML file with options by name (train_steps = 500).
        dry_run: Print the resolved configuration and end.
        world: The ranks.
    """
    from mpitrain.training.compare import compare_modes

    compare_modes(world, options, modes, target_accuracy, seeds, dry_run)
    return 0


compare.collective = True  # type: ignore[attr-defined]
