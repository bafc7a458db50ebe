"""The findings for people, and for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from mpitrain.doctor.facts import Facts
from mpitrain.doctor.findings import Finding, Mark
from mpitrain.doctor.wire import Wire

_SIGNS = {Mark.OK: "ok", Mark.NOTE: "note", Mark.WRONG: "WRONG"}


def table(facts: Sequence[Facts], findings: Sequence[Finding]) -> str:
    """A line for each finding, and below it what to do."""
    hosts: dict[str, list[int]] = {}
    for fact in facts:
        hosts.setdefault(fact.host, []).append(fact.rank)
    placed = ", ".join(f"{host}: {_ranks(ranks)}" for host, ranks in hosts.items())
    width = max(len(finding.name) for finding in findings)
    lines = [placed]
    for finding in findings:
        lines.append(f"{_SIGNS[finding.mark]:<6} {finding.name:<{width}}  {finding.value}")
        if finding.remedy:
            lines.append(f"{'':<6} {'':<{width}}  -> {finding.remedy}")
    wrong = sum(finding.mark is Mark.WRONG for finding in findings)
    lines.append("nothing is wrong" if not wrong else f"{wrong} thing{'s are' if wrong > 1 else ' is'} wrong")
    return "\n".join(lines)


def as_json(facts: Sequence[Facts], findings: Sequence[Finding], wires: Sequence[Wire]) -> str:
    """All of it as one JSON object."""
    told: dict[str, Any] = {
        "ranks": [dataclasses.asdict(fact) for fact in facts],
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "network": [dataclasses.asdict(wire) for wire in wires],
    }
    return json.dumps(told, default=_plain, indent=2)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Mark) else sorted(value)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
