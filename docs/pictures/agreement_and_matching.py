"""Draw what agreement and matching do: `python docs/pictures/agreement_and_matching.py docs/images`.

Two silos have gradients for two weights: of a signal that both share, and of a shortcut that only north has.
The arrows of the second panel are computed by the package.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse

from fedilc import weighted_geometric_mean

mpl.use("svg")
COLOURS = {
    "light": {"paper": "#ffffff", "ink": "#222222", "grid": "#cccccc", "north": "#0b62b8", "south": "#b85c00",
              "mean": "#6b6b6b", "wgm": "#0a7a4b"},
    "dark": {"paper": "#131416", "ink": "#e6e6e6", "grid": "#4a4a4a", "north": "#6db6ff", "south": "#ffae5c",
             "mean": "#b0b0b0", "wgm": "#4fd39b"},
}  # fmt: skip
NORTH, SOUTH = (1.0, 1.4), (1.1, 0.04)
EXAMPLES = 60


def arrow(axes: Axes, tip: tuple[float, float], colour: str, text: str, at: tuple[float, float]) -> None:
    """Draw a gradient from the origin, with its name."""
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": 2.4, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", tip, (0, 0), arrowprops=style)
    axes.annotate(text, at, color=colour, fontsize=10, va="center")


def plane(axes: Axes, colours: dict[str, str], title: str, text: str) -> None:
    """Draw the two axes, and say above and below what is shown."""
    axes.set(xlim=(-0.25, 2.1), ylim=(-0.45, 2.35), xticks=[], yticks=[])
    axes.axhline(0, color=colours["grid"], linewidth=1)
    axes.axvline(0, color=colours["grid"], linewidth=1)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(text, loc="left", fontsize=9, labelpad=8)
    axes.annotate("weight of the shared signal", (2.08, -0.24), fontsize=8, ha="right", va="top")
    axes.annotate("weight of north's shortcut", (0.05, 2.32), fontsize=8, va="top")


def draw(colours: dict[str, str]) -> plt.Figure:
    """Return the three panels in the colours of a page."""
    ink = colours["ink"]
    inks = {f"{key}.color": ink for key in ("text", "xtick", "ytick")}
    with plt.rc_context({**inks, "axes.labelcolor": ink, "axes.titlecolor": ink, "svg.fonttype": "path"}):
        figure, (sent, kept, matched) = plt.subplots(1, 3, figsize=(11, 4.1), layout="constrained")
        figure.patch.set_facecolor(colours["paper"])
        for axes in (sent, kept, matched):
            axes.set_facecolor(colours["paper"])
        text = "The shortcut is valid in north only:\nsouth's gradient for it is close to 0."
        plane(sent, colours, "Each silo sends a gradient", text)
        arrow(sent, NORTH, colours["north"], "north", (1.05, 1.45))
        arrow(sent, SOUTH, colours["south"], "south", (1.16, 0.12))

        votes = torch.tensor([NORTH, SOUTH])
        mean, wgm = (tuple(value.tolist()) for value in (votes.mean(0), weighted_geometric_mean(votes)))
        text = f"Of north's {NORTH[1]:.1f} for its shortcut, the mean keeps {mean[1]:.2f}"
        plane(kept, colours, "Agreement", f"{text}\nand the weighted geometric mean {wgm[1]:.2f}.")
        arrow(kept, mean, colours["mean"], "mean", (1.1, 0.75))
        arrow(kept, wgm, colours["wgm"], "weighted\ngeometric mean", (1.1, 0.3))

        text = (
            "A cross is the gradient of one example. Fishr moves\nweights to where the variances are alike."
        )
        plane(matched, colours, "Matching", text)
        random = np.random.default_rng(5)
        for name, centre, spread in (("north", NORTH, (0.12, 0.3)), ("south", SOUTH, (0.12, 0.06))):
            points = random.normal(centre, spread, (EXAMPLES, 2))
            deviation = points.std(axis=0)
            ellipse = Ellipse(
                tuple(points.mean(axis=0)), *(4 * deviation), fill=False, color=colours[name], linewidth=2
            )
            matched.plot(*points.T, "+", color=colours[name], markersize=5, alpha=0.8)
            matched.add_patch(ellipse)
            text = f"{name}: variances\n{deviation[0] ** 2:.3f} and {deviation[1] ** 2:.3f}"
            matched.annotate(text, (centre[0] + 0.33, centre[1] + 0.25), color=colours[name], fontsize=9)
    return figure


def main(folder: Path) -> None:
    """Write the picture for light and for dark pages."""
    for name, colours in COLOURS.items():
        with mpl.rc_context({"svg.hashsalt": "fedilc"}):
            figure = draw(colours)
            figure.savefig(folder / f"agreement-and-matching-{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
