"""The sum over all ranks by Horovod, where it is installed."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.cluster.mpi import MPI, before_finalize
from mpitrain.cluster.waiting import now, waiting
from mpitrain.cluster.world import MAX_COUNT, World
from mpitrain.errors import InputError, PeerLostError
from mpitrain.parameters.layout import ALIGNMENT, Layout, aligned_zeros

_BUILD = "scripts/install-horovod.sh"


class HorovodAllReduce:
    """``horovod.tensorflow.allreduce`` of the gradient as one plain tensor: Horovod's own thread agrees and sums.

    Nothing else of Horovod's is used: under Keras 3 its optimizer, callbacks and tape fail, or do not reduce at all. It
    calls ``MPI_Allreduce``, so ``sent`` states the least that any algorithm can, as for the back end ``mpi``. Memory
    beside the gradient: the sum, which TensorFlow allocates anew each time, and a vector once one needed a factor.

    Args:
        world: the ranks that reduce.
        layout: of the gradient.

    Raises:
        InputError: where Horovod is in use already, for it knows one world at a time.
    """

    name = "horovod"

    def __init__(self, world: World, layout: Layout) -> None:
        import horovod.tensorflow as hvd

        if hvd.is_initialized():
            raise InputError(
                "--allreduce horovod cannot be used here: hvd.init() has been called, and Horovod knows one group of "
                "ranks at a time; leave that call to mpitrain, or use --allreduce auto"
            )
        self._hvd, self._world, self._layout = hvd, world, layout
        self._scaled: np.ndarray | None = None
        self._gradient = np.empty(0, layout.dtype)
        self._sum: Any = None
        self.sent = 2 * (world.size - 1) * layout.nbytes // world.size
        with waiting("starting Horovod", now.step, world.others):
            hvd.init(comm=world.comm)
        before_finalize(hvd.shutdown)

    def put(self, gradient: np.ndarray) -> None:
        """See ``Backend.put``."""
        self._gradient = gradient

    def sum(self, used: Sequence[bool], factors: Sequence[float] | None) -> np.ndarray:
        """See ``Backend.sum``.

        Raises:
            PeerLostError: when Horovod gave up, which another rank's end makes it do.
        """
        rank = self._world.rank
        mine = self._mine(used[rank], None if factors is None else factors[rank])
        if self._world.size == 1 or not mine.size:
            return mine
        if mine.size <= MAX_COUNT:
            self._sum = self._reduced(mine, 0)
            return np.asarray(memoryview(self._sum))
        # One after another: what Horovod has in hand at one time it joins into one message.
        parts = [np.s_[low : low + MAX_COUNT] for low in range(0, mine.size, MAX_COUNT)]
        return np.concatenate([memoryview(self._reduced(mine[part], part.start)) for part in parts])

    def close(self) -> None:
        """End Horovod, so that it can be started for other ranks."""
        with waiting("ending Horovod", now.step, self._world.others):
            self._hvd.shutdown()

    def _reduced(self, part: np.ndarray, low: int) -> Any:
        import tensorflow as tf

        try:
            return self._hvd.allreduce(tensor_of(part), op=self._hvd.Sum, name=f"gradient.{low}")
        except tf.errors.OpError as error:
            raise PeerLostError(f"Horovod could not sum the gradients: {error}") from error

    def _mine(self, used: bool, factor: float | None) -> np.ndarray:
        if used and factor is None:
            return self._gradient
        if self._scaled is None:
            self._scaled = aligned_zeros(self._layout.size, self._layout.dtype)
        if not used:
            self._scaled[:] = 0
            return self._scaled
        return np.multiply(self._gradient, self._layout.dtype.type(factor), out=self._scaled)


def tensor_of(array: np.ndarray) -> Any:
    """``array`` as a tensor that reads the same memory, or a copy where it does not lie as TensorFlow needs it.

    Args:
        array: contiguous; may be read-only, and must outlive the tensor.
    """
    import tensorflow as tf

    place = array.__array_interface__["data"][0]
    if not array.size or place % ALIGNMENT or not array.flags.c_contiguous:
        return tf.constant(array)
    # Only what numpy may write into can be handed on; Horovod writes into a tensor of its own.
    raw = (ctypes.c_char * array.nbytes).from_address(place)
    alias = np.frombuffer(memoryview(raw), array.dtype).reshape(array.shape)
    return tf.experimental.dlpack.from_dlpack(alias.__dlpack__())


@cache
def why_not() -> str:
    """Why Horovod cannot be used in this process; empty where it can. Where it is installed this loads TensorFlow."""
    if importlib.util.find_spec("horovod") is None:
        return f"Horovod is not installed for this Python ({_BUILD} builds it)"
    try:
        import horovod.tensorflow as hvd
    except Exception as error:  # whatever the loader makes of a library that no longer fits
        first = str(error).strip().splitlines()[:1]
        return f"Horovod does not load ({type(error).__name__}: {''.join(first)}); build it again with {_BUILD}"
    if not hvd.mpi_built():
        return f"Horovod was built without MPI; build it again with {_BUILD}"
    if len(libraries := _mpi_libraries()) > 1:
        return (
            f"Horovod was built with another MPI than mpi4py uses ({' and '.join(libraries)}); build it with {_BUILD}"
        )
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return "this MPI does not let several threads call it at once, which Horovod does"
    return ""


def _mpi_libraries() -> list[str]:
    """The files of the MPI libraries that this process has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split()[-1] for line in lines if re.search(r"/libmpi(ch)?\.so[.\d]*$", line)})
