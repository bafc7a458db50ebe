"""``python -m mpitrain``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    if not sys.platform.startswith("linux"):
        print("mpitrain: error: mpitrain runs on Linux only", file=sys.stderr)
        return 2
    from mpitrain.cli.run import run

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
