"""Whatever the user gets wrong ends at once: one sentence from one rank, exit code 2, no traceback, no hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpitrain.data.sources import FILES, MNIST
from tests.cli.conftest import damage, idx, sentence_of
from tests.support.mpi import Ended, environment, launch, mpirun, run

DEADLINE = 60.0
MODELS = "tests.support.user_models"


def started(*arguments: str, ranks: int = 3, cwd: Path | None = None, **variables: str) -> Ended:
    return launch(ranks, ["-m", "mpitrain", *arguments], DEADLINE, variables, cwd)


def refused(*arguments: str, ranks: int = 3, cwd: Path | None = None, **variables: str) -> str:
    """The sentence with which a job on the sample ends, code 2."""
    variables = {"MPITRAIN_DATASET": "mnist-sample"} | variables
    return sentence_of(started(*arguments, ranks=ranks, cwd=cwd, **variables))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--mode ps-snyc", 'Did you mean "ps-sync"'),
        ("--model mlq", "--model mlq is none of mlp, lstm, cnn"),
        ("--optimizer adm", "did you mean 'adam'"),
        ("--dataset mnst", "There is no data set called 'mnst': the known ones are mnist, mnist-sample"),
        (
            "--mode ps-sync --servers 3",
            "--servers is 3 but must lie between 1 and 2, so that at least one of 3 ranks works",
        ),
        (
            "--mode ps-sync --backup-workers 2",
            "--backup-workers is 2 but must be below the number of workers, 2, so that an update has a gradient",
        ),
        (
            "--mode ps-async --backup-workers 1",
            "--backup-workers does not go with --mode ps-async, because nobody waits for the slowest there",
        ),
        (
            "compare --modes allreduce,ps-sync --staleness-bound 0",
            "--staleness-bound does not go with --mode allreduce, because every gradient is computed from the newest",
        ),
        (
            "--inject-delay 2-50",
            "--inject-delay is '2-50' but must be RANK:MILLISECONDS or RANK:MILLISECONDS:PROBABILITY",
        ),
        ("--mode ps-sync --inject-delay 0:50", "names rank 0 but must name a worker, which are ranks 1, 2"),
        ("--mode ps-async --servers 0", "--servers is 0 but must be at least 1"),
        ("--batch-size 0", "--batch-size is 0 but must be at least 1"),
        ("--train-steps -3", "--train-steps is -3 but must be at least 1"),
        ("--learning-rate nan", "--learning-rate is nan but must be a finite number above 0"),
        ("--train-steps 5 --epochs 1", "--train-steps and --epochs are both given"),
        ("--modle mlp", "unknown option --modle on the command line; did you mean --mode?"),
        ("trian", "'trian' is no command (train, compare, checkpoint, data, bench, hostfile, doctor, launch)"),
        ("compare --modes allreduce,ps", "--modes names 'ps', which is none of allreduce, ps-sync, ps-async"),
        ("compare --target-accuracy 1.5", "--target-accuracy is 1.5 but must lie between 0 and 1"),
        ("--from-tf1 --model cnn --dry-run --epochs x", 'unable to convert "x" into float'),
    ],
)
def test_a_wrong_argument(arguments: str, says: str) -> None:
    assert says in refused(*arguments.split())


@pytest.mark.parametrize("mode", ["ps-sync", "ps-async"])
def test_servers_need_a_second_rank_and_the_sentence_says_what_to_type(mode: str) -> None:
    text = refused("--mode", mode, ranks=1)
    assert f"`mpirun -np 3 python -m mpitrain --mode {mode}`, or use --mode allreduce" in text


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("lacking", f"lacks {FILES[1]}"),
        ("truncated", "is truncated, 18,831 bytes where its header announces 18,832"),
        ("magic", "starts with the bytes 01 02 03 04"),
        ("mismatch", "holds 24 images but"),
        ("gzip", "breaks off before its end"),
    ],
)
def test_a_damaged_data_folder(kind: str, says: str, folder: Path) -> None:
    damage(folder, kind)
    text = sentence_of(started("--data-dir", str(folder), cwd=folder.parent))
    assert says in text
    assert str(folder) in text


def test_a_missing_data_folder(tmp_path: Path) -> None:
    text = sentence_of(started("--data-dir", "nowhere", cwd=tmp_path))
    assert "The data folder nowhere does not exist" in text


def test_a_data_folder_whose_name_is_too_long(tmp_path: Path) -> None:
    text = sentence_of(started("--data-dir", "d" * 300, cwd=tmp_path))
    assert "does not exist or is no folder: check --data-dir" in text


def test_a_checksum_that_differs(tmp_path: Path) -> None:
    cache = tmp_path / MNIST.name
    cache.mkdir()
    for name in FILES:
        (cache / name).write_bytes(idx(np.zeros((3, 2, 2) if "images" in name else 3, np.uint8)))
    text = sentence_of(started(cwd=tmp_path, MPITRAIN_CACHE=str(tmp_path)))
    assert "is damaged, its SHA-256 is" in text
    assert "mpitrain data fetch" in text


def test_more_workers_than_training_samples(folder: Path) -> None:
    for images, labels, count in ((*FILES[:2], 13), (*FILES[2:], 10)):
        (folder / images).write_bytes(idx(np.zeros((count, 28, 28), np.uint8)))
        (folder / labels).write_bytes(idx(np.arange(count, dtype=np.uint8) % 10))
    text = sentence_of(started("--data-dir", str(folder), "--model", "mlp", ranks=13, cwd=folder.parent))
    assert "there are 13 workers but only 12 training samples" in text


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("absent", "has no function 'absent'"),
        ("raises", "raised RuntimeError 'the weights file' at"),
        ("returns_a_number", "returned a builtins.int: it must return a keras.Model"),
        ("five_classes", "gives outputs of shape (batch, 5), but the labels go up to 9"),
        ("other_input", "does not take samples of shape (28, 28, 1)"),
        ("differs_by_rank", "the model function made another model on rank 1 than on rank 0"),
    ],
)
def test_a_model_function_that_does_not_fit(function: str, says: str, tmp_path: Path) -> None:
    assert says in refused("--model", f"{MODELS}:{function}", ranks=2, cwd=tmp_path)


def test_a_module_that_does_not_exist(tmp_path: Path) -> None:
    assert "There is no module 'nowhere'" in refused("--model", "nowhere.at_all:make", ranks=2, cwd=tmp_path)


def test_a_run_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot write file/run (Not a directory)" in refused("--run-dir", "file/run", cwd=tmp_path)
    assert "(File name too long): choose another --run-dir" in refused("--run-dir", "r" * 300, cwd=tmp_path)
    assert "the run directory file is a file" in refused("--run-dir", "file", cwd=tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "summary.json").write_text("{}")
    assert "the run directory old holds a run (summary.json)" in refused("--run-dir", "old", cwd=tmp_path)


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("learning_rat = 0.1", "run.toml; did you mean learning_rate?"),
        ('batch_size = "many"', "batch_size in run.toml is 'many' but must be a whole number"),
        ("batch_size =", "--config run.toml is not valid TOML"),
    ],
)
def test_a_wrong_configuration_file(toml: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(toml)
    assert says in refused("--config", "run.toml", cwd=tmp_path)


def test_a_missing_configuration_file(tmp_path: Path) -> None:
    assert "--config run.toml cannot be read (No such file" in refused("--config", "run.toml", cwd=tmp_path)


def test_a_misspelt_variable() -> None:
    text = refused(MPITRAIN_BATCHSIZE="3")
    assert "MPITRAIN_BATCHSIZE names no option; did you mean MPITRAIN_BATCH_SIZE?" in text


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ("--seed 1", "--seed 2", "rank 1 has another command line than rank 0 (seed 2 instead of 1)"),
        ("--mode allreduce", "--mode ps-sync", "(mode 'ps-sync' instead of 'allreduce')"),
        ("--dry-run", "--log-every 7", "log_every 7 instead of 100"),
        ("--dry-run", "--seed 0", "dry_run"),
        ("train", "compare", "(command 'compare' instead of 'train')"),
        ("--seed 1", "--sed 1", "rank 1: unknown option --sed on the command line; did you mean --seed?"),
        ("--epochs 0", "--epochs 1", "rank 0: --epochs is 0.0 but must be a finite number above 0"),
    ],
)
def test_ranks_started_with_different_arguments(first: str, second: str, says: str, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "mpitrain"]
    command = [mpirun(), "-np", "1", *program, *first.split(), ":", "-np", "1", *program, *second.split()]
    ended = run(command, DEADLINE, environment({"MPITRAIN_DATASET": "mnist-sample"}), tmp_path)
    assert says in sentence_of(ended)
    assert not list(tmp_path.iterdir()), "nothing is written before all ranks agree"


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"PMI_SIZE": "3", "PMI_RANK": "{rank}"}, "use the mpirun that belongs to Open MPI"),
        ({"PMI_SIZE": "3", "PMI_RANK": "{rank}", "SLURM_STEP_ID": "0"}, "use srun --mpi=pmix"),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "3", "SLURM_PROCID": "{rank}"}, "use srun --mpi=pmix"),
    ],
)
def test_a_launcher_that_does_not_belong_to_the_library(variables: dict[str, str], says: str, tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "mpitrain", "--model", "mlp", "--dataset", "mnist-sample"],
            env=environment({name: value.format(rank=rank) for name, value in variables.items()}),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    ended = []
    for process in processes:
        out, err = process.communicate(timeout=DEADLINE)
        ended.append(Ended(process.returncode, out, err))
    text = sentence_of(ended[0])
    assert "so each of the 3 processes would train alone" in text
    assert says in text
    assert [(e.code, e.out, e.err) for e in ended[1:]] == [(2, "", "")] * 2, "only the launcher's rank 0 speaks"


@pytest.mark.parametrize(("mode", "ranks"), [("allreduce", 2), ("ps-sync", 3), ("ps-async", 3)])
def test_nan_ends_the_run_and_keeps_what_was_saved(mode: str, ranks: int, tmp_path: Path) -> None:
    arguments = "--model mlp --optimizer sgd --learning-rate 1e30 --log-every 1 --jit off --run-dir run"
    ended = started(*arguments.split(), "--mode", mode, ranks=ranks, cwd=tmp_path, MPITRAIN_DATASET="mnist-sample")
    text = sentence_of(ended, 65)
    assert "the loss or a gradient became NaN or infinite on rank" in text
    assert "at step" in text
    assert json.loads((tmp_path / "run/config.json").read_text())["mode"] == mode
    steps = [json.loads(line)["step"] for line in (tmp_path / "run/history.jsonl").read_text().splitlines()]
    # Asynchronously the other worker may have made the first update, of which the chief never hears.
    assert steps == [1] or (mode == "ps-async" and steps in ([], [1], [2], [1, 2]))
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["status"], summary["exit_code"]) == ("failed", 65)
    assert "became NaN or infinite on rank" in summary["cause"]
    assert not (tmp_path / "run/model.keras").exists()
