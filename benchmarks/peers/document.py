"""Writing what a benchmark found into a page, between two marks that stay."""

from __future__ import annotations

import os
from pathlib import Path


def put(page: Path, place: str, text: str) -> None:
    """Replace what stands in ``page`` between ``<!-- PLACE -->`` and ``<!-- end of PLACE -->``.

    Raises:
        ValueError: the page has no such place, or several.
    """
    begin, end = f"<!-- {place} -->\n", f"<!-- end of {place} -->"
    whole = page.read_text()
    if whole.count(begin) != 1 or whole.count(end) != 1 or whole.index(begin) > whole.index(end):
        raise ValueError(f"{page} needs one line {begin.strip()} and after it one {end}")
    before, rest = whole.split(begin)
    after = rest.split(end)[1]
    new = page.with_name(page.name + ".new")
    new.write_text(f"{before}{begin}{text}{end}{after}")
    os.replace(new, page)
