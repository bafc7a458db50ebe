"""The one door to mpi4py: through it the import starts nothing.

``MPI_Init`` holds the interpreter lock, so no Python thread could end a rank that is stuck in it: ``world.start_mpi``
calls it under a C timer. And before it runs, the launcher must have been compared with the library.
"""

from __future__ import annotations

import mpi4py

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402

__all__ = ["MPI"]
