"""Pictures of runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedilc.evaluation.selection import ORACLE
from fedilc.report.style import COLOURS, STYLE, save
from fedilc.report.tables import History, selections

PANELS = {
    "train_loss": "train loss (mean over silos)",
    "validation_loss": "validation loss (mean over silos)",
    "test_loss": "OOD test loss",
}
STYLES = ("-", "--", ":")


def loss_picture(path: Path, title: str, history: History) -> None:
    """One run: train, validation and OOD loss in one panel, with the rounds that were chosen."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 4.4), layout="constrained")
        axes = figure.add_subplot()
        for (key, label), colour in zip(PANELS.items(), COLOURS, strict=False):
            _line(axes, history, key, label, colour)
        chosen = selections(history)
        for criterion, record in chosen.items():
            key = "validation_loss" if criterion == "validation" else "test_loss"
            if criterion != "last" and record.get(key) is not None:
                axes.plot(record["round"], record[key], "o", color="black", markersize=5, zorder=5)
                late = record["round"] > history[-1]["round"] / 2
                axes.annotate(
                    f"{criterion}: round {record['round']}",
                    (record["round"], record[key]),
                    (0, -7),
                    textcoords="offset points",
                    fontsize=9,
                    ha="right" if late else "left",
                    va="top",
                    bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1},
                )
        _finish(axes, title)
        if "oracle" in chosen:
            axes.set_xlabel(f"round\n{ORACLE}")
        axes.legend()
        save(figure, path)


def comparison_picture(path: Path, title: str, histories: Mapping[str, History]) -> None:
    """Several runs: a panel for each loss, a line for each run."""
    keys = [
        key for key in PANELS if any(record.get(key) is not None for h in histories.values() for record in h)
    ]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.0 * len(keys), 4.6), layout="constrained")
        panels = figure.subplots(1, len(keys), squeeze=False)[0]
        for axes, key in zip(panels, keys, strict=True):
            for number, (name, history) in enumerate(histories.items()):
                _line(
                    axes,
                    history,
                    key,
                    name,
                    COLOURS[number % len(COLOURS)],
                    STYLES[number // len(COLOURS) % 3],
                )
            _finish(axes, PANELS[key])
        figure.suptitle(title)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
        save(figure, path)


def _line(axes: Axes, history: History, key: str, label: str, colour: str, style: str = "-") -> None:
    points = [(record["round"], record[key]) for record in history if record.get(key) is not None]
    if points:
        rounds, values = zip(*points, strict=True)
        marker = "o" if len(points) < 2 else None
        axes.plot(rounds, values, label=label, color=colour, linestyle=style, linewidth=1.7, marker=marker)


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("cross-entropy")
    axes.margins(x=0.01)
