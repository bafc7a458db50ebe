"""Where options come from and which wins, without MPI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpitrain.cli.app import make_app
from mpitrain.cli.arguments import parse
from mpitrain.config import RunConfig
from mpitrain.errors import InputError


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("MPITRAIN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def parsed(*argv: str) -> RunConfig:
    options = parse(make_app(), argv)[1].get("options", RunConfig())
    options.validate()
    return options


def refusal(*argv: str) -> str:
    with pytest.raises(InputError) as refused:
        parsed(*argv)
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_nothing_given_is_the_default() -> None:
    assert parsed() == RunConfig() == parsed("train")


def test_later_layers_win(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run.toml").write_text('batch_size = 1\nseed = 1\nmodel = "mlp"\nlearning_rate = 1\n')
    monkeypatch.setenv("MPITRAIN_SEED", "2")
    monkeypatch.setenv("MPITRAIN_BATCH_SIZE", "2")
    config = parsed("--config", "run.toml", "--batch-size", "3")
    assert (config.batch_size, config.seed, config.model, config.learning_rate) == (3, 2, "mlp", 1.0)
    assert config.log_every == RunConfig().log_every


def test_the_environment_may_name_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run.toml").write_text("seed = 5")
    Path("other.toml").write_text("seed = 6")
    monkeypatch.setenv("MPITRAIN_CONFIG", "run.toml")
    assert parsed().seed == 5
    assert parsed("--config=other.toml").seed == 6


@pytest.mark.parametrize("form", [("--train-steps", "7"), ("--train_steps", "7"), ("--train_steps=7",)])
@pytest.mark.parametrize("command", [(), ("train",)])
def test_dashes_and_underscores_are_the_same(form: tuple[str, ...], command: tuple[str, ...]) -> None:
    assert parsed(*command, *form).train_steps == 7


def test_underscores_in_values_stay() -> None:
    assert parsed("--model=my_package.my_module:make_it", "--run-dir", "a_b").model == "my_package.my_module:make_it"
    assert parsed("--run-dir", "a_b").run_dir == "a_b"


def test_switches_and_commands() -> None:
    command, arguments = parse(make_app(), ["compare", "--modes", "ps-sync,allreduce", "--from-tf1", "--model", "mlp"])
    assert command.__name__ == "compare"
    assert arguments["modes"] == "ps-sync,allreduce"
    assert arguments["options"].from_tf1
    assert parse(make_app(), ["--dry-run"])[1]["dry_run"] is True
    assert parse(make_app(), ["data", "fetch"])[0].__name__ == "fetch"


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1e3", "nan", "inf", "x", "", "9" * 5000, str(2**31)])
@pytest.mark.parametrize("option", ["--train-steps", "--batch-size", "--servers", "--threads", "--log-every"])
def test_numbers_that_count_something(option: str, value: str) -> None:
    assert option in refusal(f"{option}={value}")


@pytest.mark.parametrize("value", ["0", "-0.1", "nan", "inf", "-inf", "x", ""])
@pytest.mark.parametrize("option", ["--learning-rate", "--epochs"])
def test_numbers_that_measure_something(option: str, value: str) -> None:
    assert option in refusal(f"{option}={value}")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--seed", "-1"),
        ("--seed", str(2**32)),
        ("--warmup-steps", "-1"),
        ("--max-bad-gradients", "-1"),
        ("--eval-every", "often"),
        ("--eval-every", "-5"),
        ("--eval-every", "²"),
        ("--eval-every", "1.5"),
        ("--eval-every", "nanep"),
        ("--eval-every", "9" * 400 + "ep"),
        ("--lr-schedule", "step:0:0.5"),
        ("--lr-schedule", "step:5:0"),
        ("--lr-schedule", "step:5"),
        ("--lr-schedule", "linear"),
        ("--lr-scaling", "cubic"),
        ("--jit", "maybe"),
        ("--mode", "PS"),
    ],
)
def test_other_values(option: str, value: str) -> None:
    assert option in refusal(f"{option}={value}")


def test_both_lengths_also_from_different_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPITRAIN_EPOCHS", "2")
    assert refusal("--train-steps", "3").startswith("--train-steps and --epochs are both given")


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("learning_rat = 0.1", "unknown option learning_rat in"),
        ("learning_rat = 0.1", "did you mean learning_rate?"),
        ('batch_size = "many"', "batch_size in run.toml is 'many' but must be a whole number"),
        ("batch_size = 1.5", "batch_size in run.toml is 1.5 but must be a whole number"),
        ("batch_size = true", "batch_size in run.toml is True but must be a whole number"),
        ("epochs = [1]", "epochs in run.toml is [1] but must be a number"),
        ("model = 3", "model in run.toml is 3 but must be a string"),
        ('mode = "ps"', 'Choose from: "allreduce", "ps-sync", "ps-async"'),
        ("from_tf1 = 1", "from_tf1 in run.toml is 1 but must be true or false"),
        ("learning_rate = nan", "--learning-rate is nan but must be a finite number above 0"),
        ("batch_size =", "--config run.toml is not valid TOML"),
        ("[train]\nbatch_size = 3", "[train] in run.toml is a table"),
    ],
)
def test_a_wrong_configuration_file(toml: str, says: str) -> None:
    Path("run.toml").write_text(toml)
    assert says in refusal("--config", "run.toml")


def test_a_configuration_file_that_cannot_be_read() -> None:
    Path("run.toml").write_bytes(b"\xff\xfe")
    Path("folder").mkdir()
    assert "cannot be read (it is not UTF-8 text)" in refusal("--config", "run.toml")
    assert "cannot be read (Is a directory)" in refusal("--config", "folder")
    assert "cannot be read (No such file or directory)" in refusal("--config", "nowhere.toml")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("MPITRAIN_BATCHSIZE", "names no option; did you mean MPITRAIN_BATCH_SIZE?"),
        ("MPITRAIN_XYZZY", "names no option; --help lists the options"),
    ],
)
def test_misspelt_variables(name: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "3")
    assert says in refusal()


def test_wrong_values_in_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPITRAIN_BATCH_SIZE", "1.5")
    assert "1.5" in refusal()


def test_the_configuration_has_the_right_values() -> None:
    config: Any = RunConfig(seed=3)
    assert config.replace(seed=4).seed == 4
    assert config.as_dict()["seed"] == 3
    with pytest.raises(InputError, match="--servers is True but must be"):
        RunConfig(servers=True).validate()
