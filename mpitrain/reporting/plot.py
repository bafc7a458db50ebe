"""The picture of a comparison: validation loss against training time, and against samples."""

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
    """Draw ``compare.png`` (1200 x 540 pixels), and say where it is.

    Raises:
        InputError: when matplotlib is missing or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A figure of its own on Agg: pyplot would choose a backend for the whole process.
    figure = Figure(figsize=(10, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    by_time, by_samples = figure.subplots(1, 2, sharey=True)
    for number, result in enumerate(comparison.results):
        style = {
            "color": _COLOURS[number % len(_COLOURS)],
            "marker": _MARKERS[number % len(_MARKERS)],
            "linestyle": _DASHES[number % len(_DASHES)],
        }
        _draw(by_time, by_samples, result, style)
    _label(by_time, by_samples, comparison)
    figure.suptitle(_title(comparison), fontsize=12)
    handles, labels = by_time.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)

    image = io.BytesIO()
    figure.savefig(image, format="png")
    path = run_dir / "compare.png"
    write_whole(path, image.getvalue())
    return path


def _draw(by_time: Any, by_samples: Any, result: ModeResult, style: dict[str, str]) -> None:
    records = result.evaluations
    losses = [record.val_loss for record in records]
    # About a dozen markers on each line, however often the run was evaluated.
    form = {
        **style,
        "label": _legend(result),
        "linewidth": 1.8,
        "markersize": 5,
        "markevery": len(records) // 12 + 1,
    }
    by_time.plot([record.time for record in records], losses, **form)
    by_samples.plot([record.samples for record in records], losses, **form)
    reached = first_reaching(records, result.target_accuracy)
    if reached is not None:
        ring = {
            "marker": "o",
            "s": 160,
            "facecolors": "none",
            "edgecolors": style["color"],
            "linewidths": 1.5,
        }
        by_time.scatter([reached.time], [reached.val_loss], **ring)
        by_samples.scatter([reached.samples], [reached.val_loss], **ring)


def _label(by_time: Any, by_samples: Any, comparison: Comparison) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, StrMethodFormatter

    losses = [record.val_loss or 0.0 for result in comparison.results for record in result.evaluations]
    by_time.set(xlabel="training time (s)", ylabel="validation loss", xlim=(0, None))
    by_samples.set(xlabel="training samples", xlim=(0, None))
    by_samples.xaxis.set_major_formatter(EngFormatter(sep=""))
    finite = [loss for loss in losses if math.isfinite(loss)]
    if finite and min(finite) > 0 and max(finite) / min(finite) > 3:
        by_time.set_yscale("log")  # the panels share the axis
        by_time.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        by_time.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        by_time.yaxis.set_minor_formatter(NullFormatter())
    for axes in (by_time, by_samples):
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
    return f"{comparison.model} on {comparison.dataset}: {samples:,} samples (ring: accuracy {target} reached)"
