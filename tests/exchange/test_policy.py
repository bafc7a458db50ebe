"""What a policy means in numbers, and which options go together."""

from __future__ import annotations

import pytest

from mpitrain.config import MODES, RunConfig
from mpitrain.errors import InputError
from mpitrain.exchange.policy import Policy
from mpitrain.pairs import CONFLICTS, EXCLUSIONS, RULES, Conflict, Exclusion, Rule, check, table
from mpitrain.training.setup import policy_of
from tests.support.mpi import ROOT
from tests.training.pairs_job import USED


@pytest.mark.parametrize(
    ("policy", "sharing", "parts", "tickets"),
    [
        (Policy("allreduce", 4), 4, 4, 1),
        (Policy("ps-sync", 4), 4, 4, 1),
        (Policy("ps-sync", 4, backup_workers=1), 3, 1, 3),
        (Policy("ps-sync", 4, backup_workers=3), 1, 1, 1),
        (Policy("ps-async", 4), 1, 1, 1),
        (Policy("ps-async", 4, staleness_bound=2), 1, 1, 1),
        (Policy("ps-sync", 4, pipeline=True), 4, 4, 1),
        (Policy("ps-async", 4, soft_quorum=3), 3, 1, 3),
    ],
)
def test_how_many_gradients_make_an_update(policy: Policy, sharing: int, parts: int, tickets: int) -> None:
    assert (policy.sharing, policy.parts, policy.tickets) == (sharing, parts, tickets)


def test_somebody_must_be_waited_for() -> None:
    with pytest.raises(InputError, match="--backup-workers is 2 but must be below the number of workers, 2"):
        Policy("ps-sync", 2, backup_workers=2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.option)
def test_an_option_works_or_is_refused_with_the_reason(rule: Rule, mode: str) -> None:
    check(RunConfig(mode=mode))  # type: ignore[arg-type]
    given = {rule.option: USED[rule.option]}
    if rule.option == "adaptive_compensation":
        given["delay_compensation"] = USED["delay_compensation"]
    config = RunConfig(mode=mode, **given)  # type: ignore[arg-type]
    config.validate()
    if mode in rule.works:
        check(config)
        return
    with pytest.raises(InputError) as refused:
        check(config)
    text = str(refused.value)
    named = [f"{r.flag} does not go with --mode {mode}, because {r.refused[mode]}" for r in RULES if r.option in given]
    assert any(words in text for words in named)
    assert f"use --mode {rule.works[0]}" in text


@pytest.mark.parametrize("conflict", CONFLICTS, ids=lambda c: f"{c.option}-{c.other}")
def test_two_options_that_refuse_each_other_say_why(conflict: Conflict) -> None:
    given = {option: USED[option] for option in (conflict.option, conflict.other)}
    mode = next(m for m in reversed(MODES) if all(m in rule.works for rule in RULES if rule.option in given))
    with pytest.raises(InputError, match="does not go with --") as refused:
        check(RunConfig(mode=mode, **given))  # type: ignore[arg-type]
    assert conflict.why in str(refused.value)
    assert "leave one of them out" in str(refused.value)


def test_the_adaptive_form_needs_a_strength() -> None:
    with pytest.raises(InputError, match="--adaptive-compensation needs --delay-compensation LAMBDA"):
        check(RunConfig(mode="ps-async", adaptive_compensation=True))


def test_several_modes_may_each_have_options_of_their_own() -> None:
    config = RunConfig(backup_workers=1, staleness_bound=2)
    check(config, MODES)
    assert policy_of(config, "allreduce", 3) == Policy("allreduce", 3)
    assert policy_of(config, "ps-sync", 3) == Policy("ps-sync", 3, 1)
    assert policy_of(config, "ps-async", 3) == Policy("ps-async", 3, 0, 2)
    with pytest.raises(InputError, match="--staleness-bound does not go with --mode ps-sync"):
        check(config, ["ps-sync", "allreduce"])


@pytest.mark.parametrize("pair", EXCLUSIONS, ids=lambda p: f"{p.value}-{p.other}")
def test_values_that_leave_another_option_without_meaning_are_refused(pair: Exclusion) -> None:
    check(RunConfig(**{pair.option: pair.value}))  # type: ignore[arg-type]
    check(RunConfig(**{pair.other: USED[pair.other]}))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"does not go with --{pair.option} {pair.value}, because {pair.why}"):
        check(RunConfig(**{pair.option: pair.value, pair.other: USED[pair.other]}))  # type: ignore[arg-type]


def test_the_docs_have_the_table() -> None:
    assert table() in (ROOT / "docs" / "modes.md").read_text()
