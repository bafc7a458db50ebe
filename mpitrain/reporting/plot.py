"""The picture of a comparison: validation loss and accuracy against training time, and against samples."""

from __future__ import annotations

import importlib.util
import io
import math
from pathlib import Path
from typing import Any

from mpitrain.errors import InputError
from mpitrain.reporting import formats as show
from mpitrain.reporting.comparison import Comparison, ModeResult, first_reaching
from mpitrain.reporting.files import write_whole
from mpitrain.reporting.standings import standings

# Okabe and Ito's colours, which any colour vision tells apart; markers and dashes do so in print too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":")


def require_matplotlib() -> None:
    """Check that a plot can be made, without importing matplotlib: at the start, not after the training.

    Raises:
        InputError: when matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("the plot of a comparison needs matplotlib: pip install 'mpitrain[plot]'")


def plot_comparison(run_dir: Path, comparison: Comparison) -> Path:
    """Draw ``compare.png`` (1200 x 960 pixels), and say where it is.

    A contender has one colour, marker and dash, and a line for each seed.

    Raises:
        InputError: when matplotlib is missing or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A figure of its own on Agg: pyplot would choose a backend for the whole process.
    figure = Figure(figsize=(10, 8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2, sharey="row", sharex="col")
    for number, standing in enumerate(standings(comparison.results)):
        style = {
            "color": _COLOURS[number % len(_COLOURS)],
            "marker": _MARKERS[number % len(_MARKERS)],
            "linestyle": _DASHES[number % len(_DASHES)],
        }
        for run, result in enumerate(standing.runs):
            _draw(panels, result, style, _legend(result) if run == 0 else "_")
    _label(panels, comparison)
    figure.suptitle(_title(comparison), fontsize=12)
    handles, labels = panels[0][0].get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3), frameon=False)

    image = io.BytesIO()
    figure.savefig(image, format="png")
    path = run_dir / "compare.png"
    write_whole(path, image.getvalue())
    return path


def _draw(panels: Any, result: ModeResult, style: dict[str, str], label: str) -> None:
    records = result.evaluations
    # About a dozen markers on each line, however often the run was evaluated.
    form = {**style, "label": label, "linewidth": 1.8, "markersize": 5, "markevery": len(records) // 12 + 1}
    reached = first_reaching(records, result.target_accuracy)
    ring = {"marker": "o", "s": 160, "facecolors": "none", "edgecolors": style["color"], "linewidths": 1.5}
    for row, value in zip(panels, ("val_loss", "val_accuracy"), strict=True):
        for axes, along in zip(row, ("time", "samples"), strict=True):
            points = [(getattr(r, along), getattr(r, value)) for r in records if getattr(r, value) is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], **form)
            if reached is not None:
                axes.scatter([getattr(reached, along)], [getattr(reached, value)], **ring)


def _label(panels: Any, comparison: Comparison) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, StrMethodFormatter

    (loss, _), (accuracy, by_samples) = panels
    losses = [record.val_loss or 0.0 for result in comparison.results for record in result.evaluations]
    loss.set(ylabel="validation loss")
    accuracy.set(xlabel="training time (s)", ylabel="validation accuracy", xlim=(0, None))
    by_samples.set(xlabel="training samples", xlim=(0, None))
    by_samples.xaxis.set_major_formatter(EngFormatter(sep=""))
    finite = [loss for loss in losses if math.isfinite(loss)]
    if finite and min(finite) > 0 and max(finite) / min(finite) > 3:
        loss.set_yscale("log")  # the panels of a row share the axis
        loss.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        loss.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        loss.yaxis.set_minor_formatter(NullFormatter())
    for target in {result.target_accuracy for result in comparison.results}:
        for axes in (accuracy, by_samples):
            axes.axhline(target, color="#555555", linewidth=1.0, linestyle=(0, (2, 2)))
        accuracy.annotate(
            f"target {target:g}", (0.01, target), xycoords=("axes fraction", "data"), va="bottom", fontsize=9
        )
    for axes in (*panels[0], *panels[1]):
        axes.grid(which="major", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)


def _legend(result: ModeResult) -> str:
    workers = show.plural(result.workers, "worker")
    if not result.servers:
        return f"{result.label} ({workers})"
    servers = show.plural(result.servers, "server")
    return f"{result.label} ({servers}, {workers})"


def _title(comparison: Comparison) -> str:
    target = ", ".join(f"{target:g}" for target in sorted({result.target_accuracy for result in comparison.results}))
    samples = max((result.samples for result in comparison.results), default=0)
    seeds = len({result.seed for result in comparison.results})
    each = f", {seeds} seeds" if seeds > 1 else ""
    return f"{comparison.model} on {comparison.dataset}: {samples:,} samples{each} (ring: accuracy {target} reached)"
