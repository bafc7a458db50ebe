"""Importing TensorFlow without the lines that its C++ code prints on every rank before any log level is read."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from mpitrain.errors import InputError

_NOISE = re.compile(rb"oneDNN custom operations are on|before absl::InitializeLog\(\) is called")


@contextmanager
def without_noise() -> Iterator[None]:
    """Hold standard error back while the block runs, then pass on all but lines that are known to say nothing.

    Only for a short block of known code: what a process prints just before it crashes in here is lost.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            for line in held:
                if not _NOISE.search(line):
                    os.write(2, line)


@contextmanager
def _without_matplotlib() -> Iterator[None]:
    """Keras imports matplotlib where it finds it, which costs every rank half a second, and draws nothing here."""
    if "matplotlib" in sys.modules:
        yield
        return
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["matplotlib"]


def start_tensorflow(threads: int) -> None:
    """Import TensorFlow and Keras and let them start with pools of ``threads``, quietly.

    Raises:
        InputError: TensorFlow is not installed.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise InputError(
            "TensorFlow is not installed for this Python: run `pip install 'mpitrain[cpu]'`, or install tensorflow-cpu"
        )
    with without_noise(), _without_matplotlib():
        import keras  # noqa: F401
        import tensorflow as tf

        # Where the user's script has computed something, the pools run already, as the environment told them when
        # mpitrain was imported.
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.zeros(1)
