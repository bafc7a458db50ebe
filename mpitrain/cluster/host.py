"""What this host is like, as far as it decides whether and how a run goes: processor, versions, limits, clock."""

from __future__ import annotations

import importlib.util
import platform
import resource
import socket
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

PACKAGES = ("tensorflow", "keras", "numpy", "mpi4py")
"""Whose versions must be the same on every host."""

_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-cpu-aws", "tf-nightly")
_VECTORS = ("avx512f", "avx2", "avx", "sve2", "sve", "asimd")
_CPUINFO = Path("/proc/cpuinfo")


def versions() -> dict[str, str | None]:
    """Of Python, mpitrain and what computes, by package; None for what is not installed. It imports none of them."""
    from mpitrain import __version__

    found: dict[str, str | None] = {"python": platform.python_version(), "mpitrain": __version__}
    return found | {package: installed(package) for package in PACKAGES}


def installed(package: str) -> str | None:
    """The version of an installed package, without importing it; TensorFlow has several names."""
    for name in _TENSORFLOWS if package == "tensorflow" else (package,):
        with suppress(PackageNotFoundError):
            return version(name)
    if importlib.util.find_spec(package) is None:
        return None
    names = packages_distributions().get(package, [])
    return version(names[0]) if names else "of unknown version"


def processor(cpuinfo: Path = _CPUINFO) -> str:
    """The type of this host's processor with its widest vectors, which decide how sums are rounded."""
    fields: dict[str, str] = {}
    with suppress(OSError):
        for line in cpuinfo.read_text().split("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            fields[name.strip()] = value.strip()
    model = fields.get("model name") or " ".join(
        fields[name] for name in ("CPU implementer", "CPU part") if name in fields
    )
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    widest = next((flag for flag in _VECTORS if flag in flags), "")
    return ", ".join(part for part in (platform.machine(), " ".join(model.split()), widest) if part)


def soft_limit(kind: int) -> int | None:
    """One of this process's limits, ``resource.RLIMIT_NOFILE`` and the like; None where there is none."""
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def has_infiniband() -> bool:
    """Whether this host has an RDMA card, which locks memory."""
    with suppress(OSError):
        return any(Path("/sys/class/infiniband").iterdir())
    return False


def resolve(name: str) -> list[str]:
    """The IPv4 addresses of a host's name; empty where it does not resolve."""
    with suppress(OSError, UnicodeError):
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None, socket.AF_INET)})
    return []
