"""Loss curves: of one run, of several runs, and of the seeds of several algorithms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedilc.evaluation.selection import ORACLE, Record, selections
from fedilc.report.run_tables import History
from fedilc.report.style import COLOURS, add_title, save, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = {
    "train_loss": "train loss (mean over silos)",
    "validation_loss": "validation loss (mean over silos)",
    "test_loss": "OOD test loss",
}


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
