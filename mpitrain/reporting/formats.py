"""Numbers as people read them; ``-`` stands for what does not apply."""

from __future__ import annotations

ABSENT = "-"


def loss(value: float | None) -> str:
    """Four decimals, or four digits where those would say little."""
    if value is None:
        return ABSENT
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e3 else f"{value:.4g}"


def accuracy(value: float | None) -> str:
    """Four decimals: one in 10,000 test images shows."""
    return ABSENT if value is None else f"{value:.4f}"


def count(value: float | None) -> str:
    """A whole number with thousands separated."""
    return ABSENT if value is None else f"{value:,.0f}"


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with ``digits`` decimals."""
    return ABSENT if value is None else f"{value:,.{digits}f}"


def percent(fraction: float | None) -> str:
    """A fraction as a percentage with one decimal, without the sign."""
    return ABSENT if fraction is None else f"{100 * fraction:.1f}"


def seconds(value: float | None) -> str:
    """Seconds, with as many decimals as matter."""
    return ABSENT if value is None else f"{value:.2f}" if value < 10 else f"{value:,.1f}"


def size(nbytes: float | None) -> str:
    """Bytes in decimal units: ``13.10 MB``."""
    if nbytes is None:
        return ABSENT
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes:.0f} B"


def plural(number: int, noun: str) -> str:
    """``1 worker``, ``3 workers``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
