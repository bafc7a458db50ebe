"""``python -m mpitrain``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mpitrain.errors import complain
from mpitrain.reporting.stream import open_closed_streams


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    open_closed_streams()
    if not sys.platform.startswith("linux"):
        complain("mpitrain runs on Linux only")
        return 2
    from mpitrain.cli.run import run

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
