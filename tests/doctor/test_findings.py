"""Each thing that may be wrong gives one line with a host's name and what to do."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from mpitrain.doctor.facts import Facts
from mpitrain.doctor.findings import Finding, Mark, judge
from mpitrain.doctor.report import as_json, table
from mpitrain.doctor.wire import Wire, neighbours

MIB = 1 << 20
VERSIONS: dict[str, str | None] = dict.fromkeys(("python", "mpitrain", "tensorflow", "keras", "numpy", "mpi4py"), "1.0")
GOOD = Facts(
    rank=0,
    host="a",
    versions=VERSIONS,
    python="/v/bin/python",
    processor="x86_64, Good, avx2",
    mpi="Open MPI 5.0.11",
    mpi_path="/v/lib/libmpi.so.40",
    mpi_needs=4 * MIB,
    launchers=[("/v/bin/mpirun", "Open MPI 5.0.11", True)],
    own_launcher="/v/bin/mpirun",
    ulfm=True,
    horovod=None,
    cores=frozenset({0, 1}),
    slurm_cores=None,
    pins="",
    shm=(64 * MIB, 64 * MIB),
    files=1024,
    locked=None,
    infiniband=False,
    addresses=["10.0.0.1"],
    data="/data",
    thread_level="serialized",
    sees_run_dir=True,
)


def ranks(**different: Any) -> list[Facts]:
    """Ranks 0 and 1 on a, 2 on b, which differs."""
    one = dataclasses.replace(GOOD, rank=1)
    return [GOOD, one, dataclasses.replace(GOOD, **{"rank": 2, "host": "b", "addresses": ["10.0.0.2"], **different})]


def found(facts: list[Facts], *wires: Wire) -> list[Finding]:
    return [finding for finding in judge(facts, wires) if finding.mark is not Mark.OK]


def test_nothing_is_wrong_with_good_hosts() -> None:
    facts = ranks()
    assert found(facts, Wire("a", "b", 2e-5, 1e9)) == []
    said = table(facts, judge(facts, [Wire("a", "b", 2e-5, 1e9)]))
    assert said.splitlines()[0] == "a: ranks 0, 1, b: rank 2"
    assert said.endswith("nothing is wrong")
    assert "a - b           latency 20 us, 1,000 MB/s" in said


@pytest.mark.parametrize(
    ("different", "name", "mark", "value", "remedy"),
    [
        ({"versions": VERSIONS | {"keras": "2.0"}}, "Keras", "wrong", "a: 1.0; b: 2.0", "the same version"),
        ({"versions": VERSIONS | {"tensorflow": None}}, "TensorFlow", "wrong", "b: not installed", "'mpitrain[cpu]'"),
        ({"python": "/w/bin/python"}, "interpreter", "note", "b: /w/bin/python", "absolute path"),
        ({"processor": "x86_64, Other"}, "processor", "note", "b: x86_64, Other", "not bit for bit"),
        ({"mpi": "Open MPI 4.1.4"}, "MPI", "wrong", "b: Open MPI 4.1.4", "the same MPI"),
        ({"thread_level": "single"}, "MPI starts", "wrong", "b: single", "thread support"),
        ({"cores": frozenset()}, "cores", "note", "b: 0 cores for 1 rank", "on b"),
        ({"pins": "KMP_AFFINITY=compact"}, "thread pinning", "note", "b: KMP_AFFINITY", "unset it"),
        ({"files": 64}, "open files", "wrong", "b: 64", "on b"),
        ({"infiniband": True, "locked": 8 * MIB}, "locked memory", "note", "b: 8 MiB", "memlock unlimited"),
        ({"addresses": []}, "own name", "note", "b is unknown", "give b a line"),
        ({"unresolved": ("a",)}, "names", "note", "b does not know a", "/etc/hosts"),
        ({"offset": -7.0}, "clocks", "wrong", "b is 7.0 s behind a", "set the clocks"),
        ({"data": None}, "data", "wrong", "b: missing", "data fetch"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_with_a_host(different: dict[str, Any], name: str, mark: str, value: str, remedy: str) -> None:
    facts = ranks(**different)
    [finding] = found(facts)
    assert (finding.name, finding.mark.value) == (name, mark)
    assert value in finding.value
    assert remedy in finding.remedy
    assert f"-> {finding.remedy}" in table(facts, [finding])


def test_several_ranks_of_a_host_need_room_for_mpi() -> None:
    facts = [dataclasses.replace(fact, shm=(MIB, MIB)) for fact in ranks()]
    [finding] = found(facts)
    assert (finding.name, finding.mark) == ("/dev/shm", Mark.WRONG)
    assert finding.remedy.startswith("on a make it larger (docker run --shm-size=")


def test_the_launcher_on_path_is_another_one() -> None:
    other = dataclasses.replace(GOOD, launchers=[("/usr/bin/mpirun", "MPICH 4.0", False)])
    [finding] = found([other])
    assert (finding.mark, finding.remedy) == (
        Mark.NOTE,
        "start with /v/bin/mpirun, which belongs to Open MPI 5.0.11",
    )
    [finding] = found([dataclasses.replace(other, own_launcher="")])
    assert finding.mark is Mark.WRONG


def test_only_the_host_of_the_run_directory_must_write_it() -> None:
    assert found(ranks(sees_run_dir=False)) == []
    [finding] = found([dataclasses.replace(fact, sees_run_dir=None) for fact in ranks()])
    assert (finding.mark, finding.value) == (Mark.WRONG, "cannot be written on a")


def test_a_wire_that_is_dead_or_slow() -> None:
    [finding] = found(ranks(), Wire("a", "b", error="nothing: do this"))
    assert (finding.name, finding.mark, finding.remedy) == ("a - b", Mark.WRONG, "nothing: do this")
    [finding] = found(ranks(), Wire("a", "b", 1e-2, 1e9))
    assert finding.mark is Mark.NOTE


def test_each_host_is_measured_with_its_neighbours_and_one_at_a_time() -> None:
    assert neighbours([0, 0]) == []
    assert neighbours([0, 0, 2]) == [[(0, 2)]]
    rounds = neighbours([0, 0, 2, 3, 4, 4])
    assert sorted(pair for pairs in rounds for pair in pairs) == [(0, 2), (0, 4), (2, 3), (3, 4)]
    for pairs in rounds:
        flat = [rank for pair in pairs for rank in pair]
        assert len(flat) == len(set(flat))


def test_json_holds_all() -> None:
    facts, wires = ranks(), [Wire("a", "b", 1e-5, 1e9)]
    told = json.loads(as_json(facts, judge(facts, wires), wires))
    assert [rank["host"] for rank in told["ranks"]] == ["a", "a", "b"]
    assert {finding["mark"] for finding in told["findings"]} == {"ok"}
    assert told["network"][0]["bandwidth"] == 1e9
