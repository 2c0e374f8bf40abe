"""Pictures of runs: their common style, and loss curves of runs, algorithms and seeds."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedilc import algorithms
from fedilc.errors import ConfigError
from fedilc.evaluation.selection import ORACLE, Record, selections
from fedilc.report import require_report
from fedilc.report.run_tables import History
from fedilc.storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c")
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "legend.frameon": False,
    "font.size": 10,
}
PANELS = {
    "train_loss": "train loss (mean over silos)",
    "validation_loss": "validation loss (mean over silos)",
    "test_loss": "OOD test loss",
}


def colour_of(algorithm: str) -> str:
    """Return an algorithm's colour, the same in every picture; grey if it is not in the catalogue.

    >>> colour_of("fedsgd") == COLOURS[0]
    True
    """
    return dict(zip(algorithms.names(), COLOURS, strict=False)).get(algorithm, COLOURS[-1])


def line_of(algorithm: str) -> tuple[float, tuple[float, ...] | None]:
    """Return a solid line, but dashes for `fishr-intra-arith`, which would hide its equal `fedcurv`."""
    return (0, (3, 3)) if algorithm == "fishr-intra-arith" else (0, None)


@contextmanager
def styled_figure(width: float, height: float, **style: Any) -> Iterator[Figure]:
    """Give an empty figure of this size in inches, and the common style while it is drawn and saved.

    Args:
        width: of the figure.
        height: of the figure.
        style: settings of matplotlib that differ here, with _ for the dots in their names.
    """
    require_report("a picture")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE | {name.replace("_", "."): value for name, value in style.items()}):
        yield Figure(figsize=(width, height), layout="constrained")


def add_title(figure: Figure, title: str, note: str) -> None:
    """Add a title above a picture, and below the title a note, in as many lines as they need."""
    width = int(12 * figure.get_figwidth())
    lines = [*wrap(title, width, break_on_hyphens=False), *wrap(note.removeprefix("; "), width)]
    figure.suptitle("\n".join(lines), fontsize=10.5)


def save(figure: Figure, path: Path) -> None:
    """Write a picture atomically, in the format that its suffix names."""
    kind = path.suffix.lstrip(".").lower() or "png"
    picture = io.BytesIO()
    try:
        figure.savefig(picture, format=kind, dpi=130)
        content = _with_256_colours(picture) if kind == "png" else picture.getvalue()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the picture {path} cannot be written: {str(error).splitlines()[0]}") from error


def _with_256_colours(picture: io.BytesIO) -> bytes:
    """Return the PNG with 256 colours, which are enough for it, in a third of the bytes."""
    from PIL import Image

    content = io.BytesIO()
    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        small.save(content, "png", optimize=True)
    return content.getvalue()


@dataclass(frozen=True)
class Curve:
    """A line in a panel, and the style of the line; `seeds` has a history per seed."""

    label: str
    seeds: Sequence[Sequence[Record]]
    color: str
    linestyle: Any = "-"

    def draw(self, axes: Axes, key: str) -> None:
        """Draw the mean over seeds of the rounds that all seeds have measured, and the range over seeds."""
        rounds, values = common_rounds([{r["round"]: r.get(key) for r in one} for one in self.seeds])
        if not rounds:
            return
        style: dict[str, Any] = {"color": self.color, "linestyle": self.linestyle, "linewidth": 1.6}
        axes.plot(rounds, values.mean(0), marker="o" if len(rounds) < 2 else None, label=self.label, **style)
        if len(values) > 1:
            edges = values.min(0), values.max(0)
            axes.fill_between(rounds, *edges, color=self.color, alpha=0.15, linewidth=0)


def common_rounds(
    curves: Sequence[Mapping[int, float | None]],
) -> tuple[list[int], NDArray[np.float64]]:
    """Return the rounds that all curves have a value for, and the values there, a row per curve."""
    known = [{number: value for number, value in one.items() if value is not None} for one in curves]
    rounds = sorted(set.intersection(*map(set, known))) if known else []
    return rounds, np.array([[one[number] for number in rounds] for one in known], float)


def loss_picture(path: Path, title: str, history: History) -> None:
    """Draw the train, validation and OOD loss of one run in one panel, with the rounds that were chosen."""
    with styled_figure(7.5, 4.4) as figure:
        axes = figure.add_subplot()
        for (key, label), colour in zip(PANELS.items(), COLOURS, strict=False):
            Curve(label, [history], colour).draw(axes, key)
        chosen = selections(history)
        for criterion, record in chosen.items():
            key = "validation_loss" if criterion == "validation" else "test_loss"
            if criterion != "last" and record.get(key) is not None:
                point = record["round"], record[key]
                axes.plot(*point, "o", color="black", markersize=5, zorder=5)
                axes.annotate(
                    f"{criterion}: round {record['round']}",
                    point,
                    (0, -7),
                    textcoords="offset points",
                    fontsize=9,
                    ha="right" if record["round"] > history[-1]["round"] / 2 else "left",
                    va="top",
                    bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1},
                )
        _label(axes, title, f"round\n{ORACLE}" if "oracle" in chosen else "round")
        axes.legend()
        save(figure, path)


def comparison_picture(path: Path, title: str, histories: Mapping[str, History]) -> None:
    """Draw several runs: a panel per loss, a line per run."""
    styles = ("-", "--", ":")
    curves = [
        Curve(name, [history], COLOURS[number % 8], styles[number // 8 % 3])
        for number, (name, history) in enumerate(histories.items())
    ]
    draw_curves(path, title, "", curves)


def accuracy_picture(path: Path, title: str, note: str, histories: Mapping[str, History]) -> None:
    """Draw the accuracy of several runs: at the silos, and at the new site."""
    curves = [Curve(name, [history], COLOURS[n % 8]) for n, (name, history) in enumerate(histories.items())]
    panels = {
        "validation_accuracy": "at the silos (validation)",
        "test_accuracy": "at the new site (held out)",
    }
    draw_curves(path, title, note, curves, panels, "accuracy")


def draw_curves(
    path: Path,
    title: str,
    note: str,
    curves: Sequence[Curve],
    panels: Mapping[str, str] = PANELS,
    ylabel: str = "loss",
) -> None:
    """Draw a panel per number that was measured, with a line per curve, and one legend below them."""
    records = [record for curve in curves for history in curve.seeds for record in history]
    keys = [key for key in panels if any(record.get(key) is not None for record in records)]
    with styled_figure(5.0 * len(keys), 4.8) as figure:
        places = figure.subplots(1, len(keys), squeeze=False, sharey=ylabel == "accuracy")[0]
        for axes, key in zip(places, keys, strict=True):
            for curve in curves:
                curve.draw(axes, key)
            _label(axes, panels[key], ylabel=ylabel)
        add_title(figure, title, note)
        handles, labels = places[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
        save(figure, path)


def _label(axes: Axes, title: str, xlabel: str = "round", ylabel: str = "loss") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.01)
