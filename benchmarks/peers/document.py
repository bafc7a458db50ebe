"""Writing what a benchmark found into a page, between two marks that stay."""

from __future__ import annotations

import os
from pathlib import Path


def cut(page: str, place: str) -> tuple[str, str]:
    """What stands in ``page`` up to the line ``<!-- PLACE -->``, and from the line ``<!-- end of PLACE -->`` on.

    Raises:
        ValueError: the page has no such place, or several.
    """
    begin, end = f"<!-- {place} -->\n", f"<!-- end of {place} -->\n"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"the page needs one line {begin.strip()}, and below it one line {end.strip()}")
    return page[: page.index(begin) + len(begin)], page[page.index(end) :]


def put(path: Path, place: str, text: str) -> None:
    """Put ``text`` into a place of the page at ``path``, instead of what was there."""
    before, after = cut(path.read_text(), place)
    new = path.with_name(path.name + ".new")
    new.write_text(before + text + after)
    os.replace(new, path)
