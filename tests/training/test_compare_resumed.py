"""A comparison that breaks off goes on with the runs that are not complete."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.mpi import launch

RANKS = 3
COMMAND = (
    "-m tests.cluster_lab.job compare --modes allreduce,ps-sync,ps-async --train-steps 6 --eval-every 3 --run-dir c"
)


def test_runs_that_are_complete_stay_and_the_others_are_made(tmp_path: Path) -> None:
    command = [*COMMAND.split(), "--resume", "auto"]
    # As one is left that was ended before its first run.
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "summary.json").write_text('{"status": "failed"}')
    broken = launch(RANKS, command, 60, {"FAULT": "1 raise 9"}, tmp_path)
    assert broken.code == 70
    assert f"with --resume {tmp_path / 'c'} goes on with the runs that are not complete" in broken.err
    kept = (tmp_path / "c" / "allreduce" / "summary.json").read_bytes()
    assert (tmp_path / "c" / "ps-sync" / "history.jsonl").exists()

    ended = launch(RANKS, command, 60, None, tmp_path).check()
    assert "allreduce is complete" in ended.out
    assert (tmp_path / "c" / "allreduce" / "summary.json").read_bytes() == kept
    told = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert [result["label"] for result in told["results"]] == ["allreduce", "ps-sync", "ps-async"]
    assert {result["samples"] for result in told["results"]} == {1800}
    assert all(len(result["history"]) >= 2 for result in told["results"])
    assert told["results"][2]["staleness"].keys() >= {"0"}

    again = launch(RANKS, [*COMMAND.split(), "--resume", "c", "--target-accuracy", "0.1"], 60, None, tmp_path).check()
    assert again.out.count(" is complete") == 3
    after = json.loads((tmp_path / "c" / "compare.json").read_text())["results"]
    assert all(result["samples_to_target"] for result in after)
    # The history in a file has fewer digits.
    same = [
        {name: value for name, value in result.items() if "target" not in name and name != "history"}
        | {"history": [(record["step"], record["samples"]) for record in result["history"]]}
        for result in (*told["results"], *after)
    ]
    assert same[:3] == same[3:]

    for ranks, option, sentence in (
        (RANKS, ("--batch-size", "20"), "has --batch-size 100, and now it is 20"),
        (RANKS, ("--seeds", "2"), "has --seeds 1, and now it is 2"),
        (RANKS - 1, (), "has 1,800 samples on 3 ranks, and now it would have 1,200 on 2"),
    ):
        other = launch(ranks, [*command, *option], 60, None, tmp_path)
        assert other.code == 2
        assert sentence in other.err
    assert (tmp_path / "c" / "allreduce" / "summary.json").read_bytes() == kept
