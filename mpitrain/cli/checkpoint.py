"""``checkpoint``: look at the checkpoints of a run, check them, and make a plain Keras file of one."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from mpitrain.errors import ExitCode, InputError, complain
from mpitrain.reporting import formats as show
from mpitrain.reporting.stream import say

app = App(name="checkpoint", help="Checkpoints of a run.")


@app.command(name="list")
def list_(run: Path) -> int:
    """List the checkpoints of a run, the oldest first; their files are measured, and not read.

    Args:
        run: Run directory, or one checkpoint's folder.
    """
    from mpitrain.checkpoints.reader import check

    rows = [("step", "epoch", "saved at (UTC)", "made by", "size", "")]
    for folder in _folders(run):
        try:
            found = check(folder, thorough=False)
        except InputError as error:
            rows.append((folder.name.removeprefix("step-").lstrip("0") or "0", "", "", "", "", str(error)))
            continue
        made = f"{found.mode}, {show.plural(found.workers, 'worker')}"
        made += f", {show.plural(found.servers, 'server')}" if found.servers else ""
        rows.append((f"{found.step:,}", f"{found.epoch:.2f}", found.created[:19], made, show.size(found.nbytes), ""))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for step, epoch, created, made, size, wrong in rows:
        cells = step.rjust(widths[0]), epoch.rjust(widths[1]), created.ljust(widths[2]), made.ljust(widths[3])
        say("  ".join([*cells, size.rjust(widths[4]), wrong]).rstrip())
    return 0


@app.command(name="show")
def show_(checkpoint: Path) -> int:
    """Show what is in a checkpoint.

    Args:
        checkpoint: Its folder, or a run directory for the newest one.
    """
    from mpitrain.checkpoints.manifest import read_manifest

    folder = _folders(checkpoint)[-1]
    found = read_manifest(folder)
    config = {name: value for name, value in found.config.items() if value is not None}
    lines = [
        ("folder", str(folder)),
        ("step", f"{found.step:,}, epoch {found.epoch:.2f}, {found.place.settled:,} samples"),
        ("saved", f"{found.created}, after {show.seconds(found.train_seconds)} s of training"),
        ("resumed", ", ".join(f"{step:,}" for step in found.resumed) or "never"),
        ("mode", f"{found.mode}, {show.plural(found.workers, 'worker')}, {show.plural(found.servers, 'server')}"),
        ("data", f"{found.dataset}, {found.samples:,} training samples"),
        ("model", f"{found.config.get('model')}, {len(found.layout)} variables, {found.dtype}"),
        ("optimizer", f"{found.optimizer.name}, {found.iterations:,} updates"),
        ("vectors", ", ".join(f"{name} ({size:,})" for name, size in found.vectors().items())),
        ("chosen", ", ".join(f"{name}={value}" for name, value in found.choices.items())),
        ("versions", ", ".join(f"{name} {value}" for name, value in found.versions.items())),
        ("options", "  ".join(f"{name}={value}" for name, value in config.items())),
    ]
    for name, text in lines:
        say(f"{name:<10}{text}")
    for name, file in found.files.items():
        say(f"{'file':<10}{name}, {show.size(file.nbytes)}, SHA-256 {file.sha256}")
    return 0


@app.command
def verify(run: Path) -> int:
    """Read all files of a run's checkpoints, and say which are whole; the exit code is 2 where any is not.

    Args:
        run: Run directory, or one checkpoint's folder.
    """
    from mpitrain.checkpoints.reader import check

    code = ExitCode.DONE
    for folder in _folders(run):
        try:
            say(f"{folder}: whole, {show.size(check(folder).nbytes)}")
        except InputError as error:
            complain(str(error))
            code = ExitCode.BAD_INPUT
    return code


@app.command
def export(checkpoint: Path, *, output: Path | None = None) -> int:
    """Write the model of a checkpoint as a plain .keras file, which Keras opens without mpitrain.

    Args:
        checkpoint: Its folder, or a run directory for the newest whole one.
        output: The file; by default step-N.keras in the current folder.
    """
    from mpitrain.checkpoints.find import find
    from mpitrain.training.exporting import export as write

    def warn(text: str) -> None:
        say(f"mpitrain: {text}", to_errors=True)

    found = find(str(checkpoint), None, warn)
    assert found is not None
    path = output or Path(f"{found.path.name}.keras")
    write(found, path)
    say(f"{path}: step {found.manifest.step:,} of {found.manifest.config.get('model')}")
    return 0


def _folders(path: Path) -> list[Path]:
    """The checkpoints that ``path`` names, ascending.

    Raises:
        InputError: there are none.
    """
    from mpitrain.checkpoints.find import checkpoints_of
    from mpitrain.checkpoints.folder import is_checkpoint

    if is_checkpoint(path.absolute()):
        return [path]
    folder = checkpoints_of(path)
    if not folder.steps():
        raise InputError(f"there is no checkpoint in {path}: name a run directory, or a checkpoint's folder")
    return [folder.of(step) for step in folder.steps()]
