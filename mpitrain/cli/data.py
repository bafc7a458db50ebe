"""``data``: get a data set beforehand, for machines whose compute nodes have no network."""

from __future__ import annotations

from cyclopts import App

from mpitrain.errors import MpitrainError, complain

app = App(name="data", help="Data sets.")


@app.command
def fetch() -> int:
    """Fetch MNIST into the cache, or check what is there."""
    from mpitrain.data.fetch import ensure_mnist

    try:
        print(ensure_mnist(report=print, repair=True))
    except MpitrainError as error:
        complain(str(error))
        return error.exit_code
    return 0
