"""``train``: one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mpitrain.cli.arguments import whole_numbers
from mpitrain.config import RunConfig

Options = Annotated[RunConfig, Parameter(name="*", converter=whole_numbers)]
World = Annotated[Any, Parameter(parse=False)]


def train(
    options: Options = RunConfig(),  # noqa: B008
    *,
    config: Path | None = None,
    dry_run: bool = False,
    world: World = None,
) -> int:
    """Train a model; what happens without a command's name.

    Args:
        options: The run.
        config: TOML file with options by name (train_steps = 500).
        dry_run: Print the resolved configuration and end.
        world: The ranks.
    """
    from mpitrain.training.trainer import Trainer

    trainer = Trainer(config=options, world=world)
    if dry_run:
        trainer.describe()
    else:
        trainer.fit()
    return 0


train.collective = True  # type: ignore[attr-defined]
