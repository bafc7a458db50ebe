"""The directory of one run, and the configuration in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mpitrain.errors import InputError
from mpitrain.reporting.comparison import COMPARISON
from mpitrain.reporting.files import plain, write_json, write_whole, writing
from mpitrain.reporting.history import HISTORY
from mpitrain.reporting.summary import SUMMARY

RUN_FILES = (SUMMARY, HISTORY, "compare.json", COMPARISON)
"""Files whose presence shows that a directory holds a run."""


def create_run_directory(path: str | Path | None, mode: str, model: str) -> Path:
    """Make the directory that a run writes to, and try that it can be written.

    Args:
        path: the user's choice; None makes ``runs/<UTC time>-<mode>-<model>``, numbered if that exists.
        mode: for the name.
        model: for the name; ``PACKAGE.MODULE:FUNCTION`` becomes ``PACKAGE.MODULE-FUNCTION``.

    Raises:
        InputError: when ``path`` already holds a run, or cannot be made or written.
    """
    folder = _new_directory(mode, model) if path is None else _given_directory(Path(path))
    try_to_write(folder)
    return folder


def try_to_write(folder: Path) -> None:
    """Whether something can be written into ``folder``.

    Raises:
        InputError: it cannot.
    """
    write_whole(folder / ".writable", b"\n" * 4096)
    with writing(folder):
        (folder / ".writable").unlink()


def check_empty(folder: Path) -> None:
    """Whether ``folder`` holds no run.

    Raises:
        InputError: it does.
    """
    held = [name for name in RUN_FILES if (folder / name).exists()]
    if held:
        raise InputError(
            f"the run directory {folder} holds a run ({held[0]}): choose another --run-dir or delete this one, or go "
            "on with it by --resume auto"
        )


def write_config(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.json``, and ``config.toml`` which ``--config`` reads back.

    Args:
        config: option → string, integer, float, boolean or None. In the TOML file None is left out, and
            names have underscores.

    Raises:
        InputError: when a file cannot be written.
        TypeError: for a value of another kind.
    """
    text = as_toml(config)
    write_json(run_dir / "config.json", plain(config))
    write_whole(run_dir / "config.toml", text.encode())


def as_toml(config: Mapping[str, Any]) -> str:
    """The content of ``config.toml``; see :func:`write_config`."""
    given = {name: value for name, value in config.items() if value is not None}
    return "".join(f"{name.replace('-', '_')} = {_toml(name, value)}\n" for name, value in given.items())


def _new_directory(mode: str, model: str) -> Path:
    runs = Path("runs")
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    name = re.sub(r"[^\w.-]+", "-", f"{stamp}-{mode}-{model}", flags=re.ASCII)
    with writing(runs):
        runs.mkdir(exist_ok=True)
    folder = runs / name
    number = 1
    while True:
        with writing(folder):
            try:
                folder.mkdir()
                return folder
            except FileExistsError:  # of another run that began in this second
                number += 1
                folder = runs / f"{name}-{number}"


def _given_directory(folder: Path) -> Path:
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"the run directory {folder} is a file: choose another --run-dir")
        folder.mkdir(parents=True, exist_ok=True)
    check_empty(folder)
    return folder


def _toml(name: str, value: Any) -> str:
    """One value in TOML, which writes strings as JSON does, except that it also escapes DEL."""
    value = value if isinstance(value, float) else plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(float(value))
    if not isinstance(value, str):
        raise TypeError(f"{name}: config.toml holds strings, numbers and booleans, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name} is {value!r}, not UTF-8, which config.toml cannot hold: rename it") from error
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
