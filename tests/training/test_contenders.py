"""What ``compare --modes`` takes."""

from __future__ import annotations

import pytest

from mpitrain.config import RunConfig
from mpitrain.errors import InputError
from mpitrain.training.contenders import read_contenders


def test_each_mode_has_its_own_options() -> None:
    text = "allreduce,ps-sync,ps-sync+backup=1,ps-async,ps-async+bound=2+damping,local=8,elastic=0.1+local=4"
    found = read_contenders(text, RunConfig(staleness_bound=5, optimizer="sgd"))
    assert [c.label for c in found] == text.split(",")
    told = {c.label: c.config for c in found}
    assert told["allreduce"] == RunConfig(mode="allreduce", optimizer="sgd")
    assert told["ps-sync+backup=1"] == RunConfig(mode="ps-sync", backup_workers=1, optimizer="sgd")
    assert told["ps-async"] == RunConfig(mode="ps-async", staleness_bound=5, optimizer="sgd")
    both = told["ps-async+bound=2+damping"]
    assert (both.staleness_bound, both.staleness_damping) == (2, True)
    assert (told["local=8"].mode, told["local=8"].local_steps) == ("allreduce", 8)
    alone = told["elastic=0.1+local=4"]
    assert (alone.mode, alone.elastic, alone.local_steps) == ("ps-async", 0.1, 4)
    (spelt,) = read_contenders("ps-sync+backup-workers=2+servers=2", RunConfig())
    assert (spelt.config.backup_workers, spelt.config.servers) == (2, 2)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ps", "--modes names 'ps', which is none of allreduce, ps-sync, ps-async"),
        ("", "--modes names '', which is none of"),
        ("backup=1", "--modes names 'backup=1', which is none of"),
        ("ps-async,ps-async", "--modes names 'ps-async' twice"),
        ("ps-sync+backup=1,ps-sync+backup_workers=1", "--modes names 'ps-sync+backup_workers=1' twice"),
        ("ps-sync+back=1", "--modes ps-sync+back=1: there is no option 'back' to compare; there are "),
        ("ps-sync+backup", "--modes ps-sync+backup: backup needs a value, as in +backup=2"),
        ("ps-sync+backup=x", "--modes ps-sync+backup=x: backup is 'x' but must be a whole number"),
        ("elastic=x", "--modes elastic=x: elastic is 'x' but must be a number"),
        ("elastic=2", "--modes elastic=2: --elastic is 2.0 but must be a number above 0 and at most 1"),
        ("ps-async+damping=1", "--modes ps-async+damping=1: damping takes no value: write +damping"),
        ("allreduce+bound=1", "--modes allreduce+bound=1: --staleness-bound does not go with --mode allreduce"),
        ("elastic=0.1+damping", "--modes elastic=0.1+damping: --staleness-damping does not go with --elastic"),
    ],
)
def test_what_means_nothing_is_a_sentence(text: str, told: str) -> None:
    with pytest.raises(InputError) as refused:
        read_contenders(text, RunConfig())
    assert str(refused.value).startswith(told)


def test_an_option_that_no_contender_has_is_refused() -> None:
    with pytest.raises(InputError, match="--staleness-bound does not go with --mode allreduce"):
        read_contenders("allreduce,ps-sync", RunConfig(staleness_bound=1))
