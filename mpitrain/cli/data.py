"""``data``: get a data set beforehand, for machines whose compute nodes have no network."""

from __future__ import annotations

from cyclopts import App

from mpitrain.errors import MpitrainError, complain
from mpitrain.reporting.stream import say

app = App(name="data", help="Data sets.")


@app.command
def fetch() -> int:
    """Fetch MNIST into the cache, or check what is there."""
    from mpitrain.data.fetch import ensure_mnist

    try:
        say(str(ensure_mnist(report=say, repair=True)))
    except MpitrainError as error:
        complain(str(error))
        return error.exit_code
    return 0
