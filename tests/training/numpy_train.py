"""``python -m tests.training.numpy_train OPTIONS``: the command line, with a gradient step in plain numpy."""

from __future__ import annotations

import sys

from tests.support import numpy_job

if __name__ == "__main__":
    sys.exit(numpy_job.main(numpy_job.PixelStep, sys.argv[1:]))
