"""mpitrain trains Keras models data-parallel over MPI on CPU clusters, by all-reduce or with parameter servers.

Import it before TensorFlow: it sets the number of threads, which TensorFlow reads only once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpitrain.cluster import cores as _cores

_cores.limit_threads_on_import()

if TYPE_CHECKING:
    from mpitrain.config import RunConfig
    from mpitrain.training.exporting import load_checkpoint
    from mpitrain.training.trainer import Trainer

__all__ = ["RunConfig", "Trainer", "__version__", "load_checkpoint"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Loaded on first use: `--help` and the data command need neither MPI nor numpy.
    if name == "Trainer":
        from mpitrain.training.trainer import Trainer

        return Trainer
    if name == "load_checkpoint":
        from mpitrain.training.exporting import load_checkpoint

        return load_checkpoint
    if name == "RunConfig":
        from mpitrain.config import RunConfig

        return RunConfig
    raise AttributeError(f"module 'mpitrain' has no attribute {name!r}")
