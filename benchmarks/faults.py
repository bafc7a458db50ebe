"""Every fault at every rank, in every mode, at every moment: the tables of docs/reliability.md.

    python -m benchmarks.faults [WORDS]

WORDS choose the cells whose names contain all of them. Exits with 1 where any cell is not as promised.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tests.faults.launch import Seen, judge, suffer
from tests.faults.matrix import FAULTS, MOMENTS, PASSING, STALL, START, Cell, cells


def main() -> None:
    """Run the cells, a line for each that is not as promised, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--side-by-side", type=int, default=2, help="jobs at a time")
    parser.add_argument("--verbose", action="store_true", help="with what each wrong job said")
    arguments = parser.parse_args()
    wanted = [cell for cell in cells() if all(word in str(cell) for word in arguments.words)]
    seen: dict[Cell, Seen] = {}
    bad = 0
    with ThreadPoolExecutor(arguments.side_by_side) as pool:
        for cell, result in zip(wanted, pool.map(suffer, wanted), strict=True):
            seen[cell] = result
            if wrong := judge(cell, result):
                bad += 1
                print(f"{cell}: {'; '.join(wrong)}", flush=True)
                if arguments.verbose:
                    print(result.err, flush=True)
    print(tables(seen))
    print(f"{len(seen)} cells, {bad} not as promised")
    sys.exit(1 if bad else 0)


def tables(seen: Mapping[Cell, Seen]) -> str:
    """Seconds from the fault until nothing of the job was left: the longest over ranks and modes."""
    moments = [moment for moment in MOMENTS if any(cell.moment == moment for cell in seen)]
    lines = [
        f"Limits: `--stall-timeout {STALL:g} --start-timeout {START:g}`. {len(seen)} jobs.",
        "",
        f"| fault | mpirun's exit code | {' | '.join(MOMENTS[m] for m in moments)} |",
        f"|---|---:|{'---:|' * len(moments)}",
    ]
    for fault, meaning in FAULTS.items():
        of_fault = [cell for cell in seen if cell.fault == fault]
        if of_fault:
            codes = ", ".join(str(code) for code in sorted({seen[cell].code or 0 for cell in of_fault}, reverse=True))
            entries = [_entry(fault, [seen[c] for c in of_fault if c.moment == moment]) for moment in moments]
            lines.append(f"| {meaning} | {codes} | {' | '.join(entries)} |")
    return "\n".join(lines) + "\n"


def _entry(fault: str, results: list[Seen]) -> str:
    if not results:
        return "-"
    return "goes on" if fault in PASSING else f"{max(result.seconds for result in results):.1f}"


if __name__ == "__main__":
    main()
