"""Which options go together: one table, from which runs are refused, documented and tested."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.config import MODES, RunConfig
from mpitrain.errors import InputError


@dataclass(frozen=True)
class Rule:
    """An option that some modes have no use for.

    Args:
        option: a field of ``RunConfig``.
        refused: mode → why the option means nothing there, as the end of a sentence.
    """

    option: str
    refused: dict[str, str]

    @property
    def flag(self) -> str:
        """As it is typed."""
        return "--" + self.option.replace("_", "-")

    @property
    def works(self) -> tuple[str, ...]:
        """The modes that have it."""
        return tuple(mode for mode in MODES if mode not in self.refused)

    def given(self, config: RunConfig) -> bool:
        """Whether ``config`` asks for it."""
        default = next(f.default for f in dataclasses.fields(RunConfig) if f.name == self.option)
        return bool(getattr(config, self.option) != default)


RULES = (
    Rule("transport", {"allreduce": "there are no servers, and --allreduce says how gradients are summed"}),
    Rule(
        "backup_workers",
        {
            "allreduce": "an all-reduce needs every rank's part of the sum",
            "ps-async": "nobody waits for the slowest there, so nobody has to stand in for it",
        },
    ),
    Rule(
        "staleness_bound",
        {
            "allreduce": "every gradient is computed from the newest parameters there",
            "ps-sync": "every gradient is computed from the newest parameters there",
        },
    ),
)


def check(config: RunConfig, modes: Sequence[str] = ()) -> None:
    """Refuse an option that none of the modes to be run has.

    Args:
        config: validated.
        modes: of the runs; by default ``config.mode``.

    Raises:
        InputError: with the reason.
    """
    modes = modes or (config.mode,)
    for rule in RULES:
        if rule.given(config) and all(mode in rule.refused for mode in modes):
            raise InputError(
                f"{rule.flag} does not go with --mode {modes[0]}, because {rule.refused[modes[0]]}: leave it out, or "
                f"use --mode {' or '.join(rule.works)}"
            )


def table() -> str:
    """The rules for the docs, in Markdown."""
    lines = ["| | " + " | ".join(f"`{mode}`" for mode in MODES) + " |", "|---" * (len(MODES) + 1) + "|"]
    for rule in RULES:
        cells = (f"refused: {rule.refused[mode]}" if mode in rule.refused else "works" for mode in MODES)
        lines.append(f"| `{rule.flag}` | {' | '.join(cells)} |")
    return "\n".join(lines)
