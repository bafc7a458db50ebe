"""What the facts mean: each finding is fine, worth knowing, or wrong, and then says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from mpitrain.cluster import cores, shared_memory
from mpitrain.cluster.host import PACKAGES
from mpitrain.doctor.facts import Facts
from mpitrain.doctor.wire import Wire

_CLOCKS_DIFFER = 1.0  # seconds
_FILES = 64  # open files of a rank of its own, beside those for each other rank
_SLOW_WIRE, _FAR_WIRE = 100e6 / 8, 5e-3  # bytes per second, seconds
MIB = 1 << 20


class Mark(Enum):
    """How good a finding is."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Args:
        name: of what was looked at.
        mark: how good it is.
        value: what was found, with the host's name where hosts differ.
        remedy: what to do.
    """

    name: str
    mark: Mark
    value: str
    remedy: str = ""


def judge(facts: Sequence[Facts], wires: Sequence[Wire], errors: Sequence[str] = ()) -> list[Finding]:
    """All findings, in the order of the table.

    Args:
        facts: of every rank, in rank order.
        wires: between neighbouring hosts.
        errors: why MPI did not start.
    """
    hosts: dict[str, list[Facts]] = {}
    for fact in facts:
        hosts.setdefault(fact.host, []).append(fact)
    firsts = [ranks[0] for ranks in hosts.values()]
    found = [_package(name, facts) for name in ("python", "mpitrain", *PACKAGES)]
    found += [_interpreter(facts), _processor(facts), _library(facts), _launcher(firsts), _starts(facts, errors)]
    found += [
        Finding("ULFM", Mark.OK, _by_host(firsts, lambda f: "in the library" if f.ulfm else "not in the library")),
        Finding("Horovod", Mark.OK, _by_host(firsts, lambda f: f.horovod or "not installed")),
        _cores(hosts),
        _pins(facts),
        _shm(hosts),
        _files(facts),
        _locked(firsts),
        _names(firsts),
    ]
    if len(firsts) > 1:
        found.append(_clock(firsts))
    if not errors:
        found.append(_run_dir(facts, firsts))
    return [*found, _data(firsts), *map(_wire, wires)]


def _package(name: str, facts: Sequence[Facts]) -> Finding:
    label = {"python": "Python", "tensorflow": "TensorFlow", "keras": "Keras"}.get(name, name)
    value = _by_host(facts, lambda f: f.versions[name] or "not installed")
    if any(f.versions[name] is None for f in facts):
        where = _hosts(f for f in facts if f.versions[name] is None)
        extra = "cpu" if name in ("tensorflow", "keras") else ""
        install = f"pip install 'mpitrain[{extra}]'" if extra else "pip install mpitrain"
        return Finding(label, Mark.WRONG, value, f"install it on {where}: {install}")
    if len({f.versions[name] for f in facts}) > 1:
        return Finding(label, Mark.WRONG, value, "install the same version on every host")
    return Finding(label, Mark.OK, value)


def _interpreter(facts: Sequence[Facts]) -> Finding:
    value = _by_host(facts, lambda f: f.python)
    if len({f.python for f in facts}) > 1:
        return Finding("interpreter", Mark.NOTE, value, "give the launcher the interpreter's absolute path")
    return Finding("interpreter", Mark.OK, value)


def _processor(facts: Sequence[Facts]) -> Finding:
    value = _by_host(facts, lambda f: f.processor)
    if len({f.processor for f in facts}) > 1:
        return Finding("processor", Mark.NOTE, value, "runs on these hosts agree to rounding, not bit for bit")
    return Finding("processor", Mark.OK, value)


def _library(facts: Sequence[Facts]) -> Finding:
    value = _by_host(facts, lambda f: f"{f.mpi}, {f.mpi_path or 'from an unknown place'}")
    if len({f.mpi for f in facts}) > 1:
        return Finding("MPI", Mark.WRONG, value, "install the same MPI on every host")
    return Finding("MPI", Mark.OK, value)


def _launcher(firsts: Sequence[Facts]) -> Finding:
    """Of the first host: the others need none."""
    here = firsts[0]
    told = ", ".join(f"{path} ({what})" for path, what, _ in here.launchers) or "none on PATH"
    if not here.own_launcher:
        remedy = f"install the mpirun of {here.mpi}, or put its folder first on PATH"
        return Finding("launcher", Mark.WRONG, told, remedy)
    if here.launchers and here.launchers[0][2]:
        return Finding("launcher", Mark.OK, told)
    return Finding("launcher", Mark.NOTE, told, f"start with {here.own_launcher}, which belongs to {here.mpi}")


def _starts(facts: Sequence[Facts], errors: Sequence[str]) -> Finding:
    if errors:
        return Finding("MPI starts", Mark.WRONG, "no", errors[0])
    value = f"{len(facts)} rank{'s' * (len(facts) > 1)}, thread level {_by_host(facts, lambda f: f.thread_level)}"
    if any(f.thread_level == "single" for f in facts):
        return Finding("MPI starts", Mark.WRONG, value, "use an MPI library that was built with thread support")
    return Finding("MPI starts", Mark.OK, value)


def _cores(hosts: dict[str, list[Facts]]) -> Finding:
    told: dict[str, str] = {}
    crowded = []
    for host, ranks in hosts.items():
        masks = [f.cores for f in ranks]
        threads = [cores.share(masks, [True] * len(ranks), i) for i in range(len(ranks))]
        threads = [min(t, f.slurm_cores or t) for t, f in zip(threads, ranks, strict=True)]
        available = len(frozenset.union(*masks))
        each = f"{min(threads)}-{max(threads)}" if min(threads) < max(threads) else str(threads[0])
        told[host] = f"{_many(available, 'core')} for {_many(len(ranks), 'rank')}, threads each: {each}"
        if len(ranks) > available:
            crowded.append(host)
    value = _merge(told)
    if crowded:
        remedy = f"ranks outnumber the cores on {', '.join(crowded)}, and wait for one another: start fewer there"
        return Finding("cores", Mark.NOTE, value, f"{remedy}, or check --bind-to none and --cpus-per-task")
    return Finding("cores", Mark.OK, value)


def _pins(facts: Sequence[Facts]) -> Finding:
    value = _by_host(facts, lambda f: f.pins or "none")
    if any(f.pins for f in facts):
        return Finding("thread pinning", Mark.NOTE, value, "unset it: the ranks of a host may share the same cores")
    return Finding("thread pinning", Mark.OK, value)


def _shm(hosts: dict[str, list[Facts]]) -> Finding:
    told: dict[str, str] = {}
    needs: dict[str, int] = {}
    for host, ranks in hosts.items():
        total, free = ranks[0].shm
        # What a rank saw after another of its host had started MPI is less than there was.
        free = max(f.shm[1] for f in ranks)
        need = ranks[0].mpi_needs * len(ranks) // 2 if len(ranks) > 1 else 0
        told[host] = f"{free // MIB:,} of {total // MIB:,} MiB free, MPI needs {need // MIB}"
        if free < need:
            needs[host] = need
    if needs:
        remedy = f"on {', '.join(needs)} {shared_memory.remedy(max(needs.values()))}, or start fewer ranks there"
        return Finding("/dev/shm", Mark.WRONG, _merge(told), remedy)
    return Finding("/dev/shm", Mark.OK, _merge(told))


def _files(facts: Sequence[Facts]) -> Finding:
    need = _FILES + 4 * len(facts)
    value = _by_host(facts, lambda f: "no limit" if f.files is None else f"{f.files:,}")
    low = [f for f in facts if f.files is not None and f.files < need]
    if low:
        remedy = f"{len(facts)} ranks need {need} each: ulimit -n {2 * need} on {_hosts(low)}"
        return Finding("open files", Mark.WRONG, value, f"{remedy}, or raise nofile in /etc/security/limits.conf")
    return Finding("open files", Mark.OK, value)


def _locked(firsts: Sequence[Facts]) -> Finding:
    value = _by_host(firsts, lambda f: "no limit" if f.locked is None else f"{f.locked // MIB:,} MiB")
    low = [f for f in firsts if f.infiniband and f.locked is not None]
    if low:
        remedy = f"{_hosts(low)} has an InfiniBand card, for which MPI locks memory"
        return Finding("locked memory", Mark.NOTE, value, f"{remedy}: memlock unlimited in /etc/security/limits.conf")
    return Finding("locked memory", Mark.OK, value)


def _names(firsts: Sequence[Facts]) -> Finding:
    nameless = [f for f in firsts if not f.addresses]
    value = _by_host(firsts, lambda f: f"{f.host} is {', '.join(f.addresses) or 'unknown'}")
    if nameless:
        remedy = f"give {_hosts(nameless)} a line in its own /etc/hosts"
        return Finding("own name", Mark.NOTE, value, remedy)
    strangers = [f"{f.host} does not know {', '.join(f.unresolved)}" for f in firsts if f.unresolved]
    if strangers:
        return Finding("names", Mark.NOTE, "; ".join(strangers), "put all hosts into DNS or into each /etc/hosts")
    return Finding("names", Mark.OK, value)


def _clock(firsts: Sequence[Facts]) -> Finding:
    worst = max(firsts, key=lambda f: abs(f.offset))
    if abs(worst.offset) > _CLOCKS_DIFFER:
        direction = "ahead of" if worst.offset > 0 else "behind"
        value = f"{worst.host} is {abs(worst.offset):.1f} s {direction} {firsts[0].host}"
        remedy = "set the clocks (chrony, ntpd), or times in logs and files do not fit together"
        return Finding("clocks", Mark.WRONG, value, remedy)
    return Finding("clocks", Mark.OK, f"{abs(worst.offset) * 1e3:.1f} ms from {firsts[0].host}'s at most")


def _run_dir(facts: Sequence[Facts], firsts: Sequence[Facts]) -> Finding:
    if facts[0].sees_run_dir is not True:
        remedy = "name a folder that can be written there with --run-dir"
        return Finding("run directory", Mark.WRONG, f"cannot be written on {facts[0].host}", remedy)
    blind = [f for f in firsts if not f.sees_run_dir]
    value = f"writable on {facts[0].host}"
    if blind:
        return Finding("run directory", Mark.OK, f"{value}, not seen on {_hosts(blind)}: what it has travels")
    return Finding("run directory", Mark.OK, f"{value}, seen on all hosts" if len(firsts) > 1 else value)


def _data(firsts: Sequence[Facts]) -> Finding:
    value = _by_host(firsts, lambda f: f.data or "missing")
    blind = [f for f in firsts if f.data is None]
    if blind:
        remedy = f"on {_hosts(blind)} run `{blind[0].python} -m mpitrain data fetch`, or give --data-dir"
        return Finding("data", Mark.WRONG, value, remedy)
    return Finding("data", Mark.OK, value)


def _wire(wire: Wire) -> Finding:
    name = f"{wire.host} - {wire.other}"
    if wire.error:
        return Finding(name, Mark.WRONG, "no answer", wire.error)
    value = f"latency {wire.latency * 1e6:,.0f} us, {wire.bandwidth / 1e6:,.0f} MB/s"
    if wire.latency > _FAR_WIRE or wire.bandwidth < _SLOW_WIRE:
        remedy = "slow for training: check that MPI uses the right network (--network of `mpitrain launch`)"
        return Finding(name, Mark.NOTE, value, remedy)
    return Finding(name, Mark.OK, value)


def _by_host(facts: Sequence[Facts], value: Callable[[Facts], str]) -> str:
    """The value where all have the same, else which host has which."""
    told: dict[str, str] = {}
    for fact in facts:
        said = value(fact)
        if said not in (before := told.get(fact.host, "")).split(" and "):
            told[fact.host] = f"{before} and {said}" if before else said
    return _merge(told)


def _merge(told: dict[str, str]) -> str:
    hosts: dict[str, list[str]] = {}
    for host, value in told.items():
        hosts.setdefault(value, []).append(host)
    if len(hosts) == 1:
        return next(iter(hosts))
    return "; ".join(f"{', '.join(names)}: {value}" for value, names in hosts.items())


def _hosts(facts: Iterable[Facts]) -> str:
    return ", ".join(dict.fromkeys(f.host for f in facts))


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
