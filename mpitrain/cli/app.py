"""The commands of ``python -m mpitrain``."""

from __future__ import annotations

from cyclopts import App

from mpitrain import __version__
from mpitrain.cli import bench, checkpoint, compare, data, doctor, hostfile, launch, train
from mpitrain.cli.arguments import DEFAULT_PARAMETER

HELP = """Train Keras models data-parallel over MPI on CPUs.

`mpirun -np 3 python -m mpitrain` trains a convolutional network on MNIST with three workers and all-reduce;
`--mode ps-sync` and `--mode ps-async` make rank 0 a parameter server. Options come from a TOML file (`--config`),
from MPITRAIN_* variables and from the command line; the later wins."""


def make_app() -> App:
    """The application with all its commands; training is what happens without a command's name."""
    app = App(
        name="mpitrain",
        help=HELP,
        help_format="plaintext",
        version=__version__,
        default_parameter=DEFAULT_PARAMETER,
        result_action="return_value",
    )
    app.default(train.train)
    app.command(train.train)
    app.command(compare.compare)
    app.command(checkpoint.app)
    app.command(data.app)
    app.command(bench.app)
    app.command(hostfile.app)
    app.command(doctor.doctor)
    app.command(launch.launch)
    return app
