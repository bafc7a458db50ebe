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


@dataclass(frozen=True)
class Conflict:
    """Two options that do not go together in any mode.

    Args:
        option: a field of ``RunConfig``.
        other: another.
        why: as the end of a sentence.
    """

    option: str
    other: str
    why: str


@dataclass(frozen=True)
class Exclusion:
    """A value of one option that leaves another, where it is not at its default, without meaning.

    Args:
        option: a field of ``RunConfig``.
        value: of it.
        other: another field.
        why: the end of a sentence.
        instead: what to do.
    """

    option: str
    value: str
    other: str
    why: str
    instead: str

    def given(self, config: RunConfig) -> bool:
        """Whether ``config`` asks for both."""
        return bool(getattr(config, self.option) == self.value) and Rule(self.other, {}).given(config)


_NEWEST = "every gradient is computed from the newest parameters there"
_ALIKE = "all gradients of an update are computed from the same parameters there"

RULES = (
    Rule("server_placement", {"allreduce": "there are no servers"}),
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
            "allreduce": _NEWEST,
            "ps-sync": _ALIKE,
        },
    ),
    Rule(
        "soft_quorum",
        {
            "allreduce": "an all-reduce needs every rank's part of the sum",
            "ps-sync": "an update is made of the gradients of one step there, and --backup-workers says how many",
        },
    ),
    Rule("staleness_damping", {"allreduce": _NEWEST, "ps-sync": _ALIKE}),
    Rule("delay_compensation", {"allreduce": _NEWEST, "ps-sync": _ALIKE}),
    Rule("adaptive_compensation", {"allreduce": _NEWEST, "ps-sync": _ALIKE}),
    Rule("local_steps", {}),
    Rule("elastic", {}),
    Rule("pipeline", {"allreduce": "there are no servers that could work while the next gradient is computed"}),
    Rule("accumulate", {}),
    Rule("wire_dtype", dict.fromkeys(("ps-sync", "ps-async"), "gradients travel to servers as they are")),
)

_TWICE = "two rounds that begin at the same parameters would both be added, and go too far"
_NO_GRADIENT = "what a worker hands over is a difference of parameters there, and no gradient"

CONFLICTS = (
    Conflict("accumulate", "local_steps", "one exchanges every so many batches, the other too"),
    Conflict("accumulate", "elastic", "the worker applies each gradient itself there"),
    Conflict("delay_compensation", "local_steps", _NO_GRADIENT),
    Conflict("delay_compensation", "elastic", _NO_GRADIENT),
    Conflict("staleness_damping", "elastic", "both ends of the force must move alike"),
    Conflict("pipeline", "backup_workers", "a gradient that comes late is told by its age there, and all are old"),
    Conflict("pipeline", "local_steps", _TWICE),
    Conflict("pipeline", "elastic", _TWICE),
    Conflict("wire_dtype", "elastic", "both ends of the force must move alike"),
)
"""Options that refuse each other; all other pairs work where both do."""

EXCLUSIONS = (
    Exclusion(
        "allreduce",
        "mpi",
        "wire_dtype",
        "MPI would make the sums themselves in that type",
        "use --allreduce ring, halving-doubling or hierarchical",
    ),
    Exclusion(
        "allreduce",
        "shared",
        "wire_dtype",
        "memory is no wire: narrowing would cost more than it saves",
        "use --allreduce ring or halving-doubling, or leave it out",
    ),
)


def check(config: RunConfig, modes: Sequence[str] = ()) -> None:
    """Refuse an option that none of the modes to be run has, or that another one leaves without meaning.

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
    given = {rule.option: rule.flag for rule in RULES if rule.given(config)}
    for conflict in CONFLICTS:
        if conflict.option in given and conflict.other in given:
            one, other = given[conflict.option], given[conflict.other]
            raise InputError(f"{one} does not go with {other}, because {conflict.why}: leave one of them out")
    if config.adaptive_compensation and config.delay_compensation is None:
        raise InputError("--adaptive-compensation needs --delay-compensation LAMBDA: give it, for example 2")
    for pair in EXCLUSIONS:
        if pair.given(config):
            flag, other = (Rule(name, {}).flag for name in (pair.option, pair.other))
            raise InputError(f"{other} does not go with {flag} {pair.value}, because {pair.why}: {pair.instead}")


def table() -> str:
    """The rules for the docs, in Markdown."""
    lines = ["| | " + " | ".join(f"`{mode}`" for mode in MODES) + " |", "|---" * (len(MODES) + 1) + "|"]
    for rule in RULES:
        cells = (f"refused: {rule.refused[mode]}" if mode in rule.refused else "works" for mode in MODES)
        lines.append(f"| `{rule.flag}` | {' | '.join(cells)} |")
    flags = {rule.option: rule.flag for rule in RULES}
    lines += ["", "| together | |", "|---|---|"]
    lines += [f"| `{flags[c.option]}` and `{flags[c.other]}` | refused: {c.why} |" for c in CONFLICTS]
    return "\n".join(lines)
