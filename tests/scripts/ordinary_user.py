"""Run a command as an ordinary user, who can enter the folders that it needs wherever they are: needs root.

    python ordinary_user.py HOME FOLDER... -- COMMAND...

The checkout, or the Python that its environment was made with, may lie where only root looks (/root). In a mount
namespace of its own, each folder is shown at its path below parents that everyone may enter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

USER = 65534
"""The user id of nobody."""


def closed_parent(folder: Path) -> Path | None:
    """The topmost parent of ``folder`` that others may not enter."""
    return next((p for p in reversed(folder.parents) if not p.stat().st_mode & 0o001), None)


def show(folders: list[Path]) -> None:
    """Put in the place of each closed parent an open folder that holds of all its content only ``folders``."""
    stage = Path("/media")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(stage))
    staged = [(stage / str(i), folder, closed_parent(folder)) for i, folder in enumerate(folders)]
    for place, folder, _ in staged:
        place.mkdir()
        mount("--rbind", str(folder), str(place))
    for parent in sorted({parent for *_, parent in staged if parent}):
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(parent))
    for place, folder, hidden in staged:
        if hidden:
            folder.mkdir(parents=True, exist_ok=True)
            mount("--rbind", str(place), str(folder))


def mount(*arguments: str) -> None:
    """Call mount."""
    subprocess.run(["mount", *arguments], check=True)


def main(arguments: list[str]) -> None:
    """Become the user and the command."""
    separator = arguments.index("--")
    home, *folders = (Path(argument) for argument in arguments[:separator])
    os.chown(home, USER, USER)
    show([home, *folders])
    os.chdir(home)
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    command = arguments[separator + 1 :]
    os.execvpe(command[0], command, {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"})


if __name__ == "__main__":
    main(sys.argv[1:])
