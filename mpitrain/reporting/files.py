"""Files that are whole or not there: plain data as JSON, a temporary name, then a rename."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.errors import InputError


def plain(value: Any) -> Any:
    """``value`` as strings, numbers, lists and dicts that strict JSON can hold.

    Args:
        value: numpy scalars and arrays, dataclasses, enums, paths, and containers of them.

    Returns:
        The same in plain types. NaN and the infinities, which JSON has no word for, become ``"nan"``,
        ``"inf"`` and ``"-inf"``: ``float()`` reads them back, and null keeps meaning "does not apply".

    Raises:
        TypeError: for anything else.
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(float(value))
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no plain form: {value!r}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write ``path`` into a sentence.

    Raises:
        InputError: for any ``OSError`` inside the block.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free some space there, or choose another --run-dir" if full else "choose another --run-dir"
        raise InputError(f"cannot write {path} ({error.strerror or error}): {advice}") from error


def write_whole(path: Path, content: bytes, replace: bool = True, durable: bool = True) -> None:
    """Write ``content`` to ``path`` so that at any moment the file is the old one (or none) or the new one.

    Args:
        path: the file.
        content: all of it.
        replace: whether to replace a file that is there; else that one stays.
        durable: whether that also holds through a power cut, for which the disk is waited for; else only through
            this process's end.

    Raises:
        InputError: when it cannot be written; nothing is left behind then.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with writing(path):
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            if replace:
                temporary.replace(path)
            else:
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
                temporary.unlink()
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    if durable:
        sync_folder(path.parent)


def write_json(path: Path, data: Any, replace: bool = True, durable: bool = True) -> None:
    """Write ``plain(data)`` to ``path`` as indented JSON, atomically; the rest as in :func:`write_whole`.

    Raises:
        InputError: when the file cannot be written.
        TypeError: when ``data`` has no plain form; nothing is written then.
    """
    text = json.dumps(plain(data), indent=2, allow_nan=False)
    write_whole(path, f"{text}\n".encode(), replace, durable)


def sync_folder(folder: Path) -> None:
    """Make the rename last through a power cut, where the file system can (some refuse fsync on folders)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
