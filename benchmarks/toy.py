"""The paper's toy claim: a geometric mean of gradients is slower along directions in which
the silos' losses curve differently.

`python -m benchmarks.toy docs/images/inconsistent-directions.png` draws it. Two silos have quadratic losses
with the same minimum: along the first weight both curve alike, along the second very differently.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedilc import weighted_geometric_mean
from fedilc.report.plots import STYLE, colour_of, save

CURVATURES = ((1.0, 1.9), (1.0, 0.1))  # of each silo, along each direction
DIRECTIONS = ("consistent", "inconsistent")
Aggregate = Callable[[Tensor], Tensor]
AGGREGATES: dict[str, Aggregate] = {"fedsgd": lambda rows: rows.mean(0), "geometric": weighted_geometric_mean}
OPTIMISERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "gradient descent": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.02, eps=1e-12),
}


def path(curvatures: Sequence[Sequence[float]], aggregate: str, optimiser: str, steps: int) -> Tensor:
    """Return the weights before each step, from ones, in float64: (steps + 1, directions)."""
    curved = torch.tensor(curvatures, dtype=torch.float64)
    weights = torch.ones(curved.shape[1], dtype=torch.float64)
    optimizer = OPTIMISERS[optimiser]([weights])
    places = [weights.clone()]
    for _ in range(steps):
        weights.grad = AGGREGATES[aggregate](curved * weights)
        optimizer.step()
        places.append(weights.clone())
    return torch.stack(places)


def draw(file: Path, steps: int = 60) -> None:
    """Draw both paths over the silos' losses, and the distance left in each direction."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.7), layout="constrained")
        plane, *panels = figure.subplots(1, 3)
        grid = torch.linspace(-0.15, 1.15, 101)
        for (one, other), line in zip(CURVATURES, ("-", "--"), strict=True):
            losses = 0.5 * (one * grid[None, :] ** 2 + other * grid[:, None] ** 2)
            plane.contour(grid, grid, losses, levels=7, colors="#999999", linewidths=0.8, linestyles=line)
        for name in AGGREGATES:
            places = path(CURVATURES, name, "gradient descent", steps)
            plane.plot(*places.T, marker=".", markersize=3, linewidth=1, color=colour_of(name), label=name)
        plane.set(title="gradient descent, both silos' losses", xlabel="consistent direction", aspect="equal")
        plane.set_ylabel("inconsistent direction")
        for axes, optimiser in zip(panels, OPTIMISERS, strict=True):
            for name in AGGREGATES:
                left = path(CURVATURES, name, optimiser, steps).abs()
                for column, line in enumerate(("--", "-")):
                    label = f"{name}, {DIRECTIONS[column]}"
                    wide = (
                        3.5 if name == "fedsgd" else 1.4
                    )  # so that a curve on top of another leaves it visible
                    axes.plot(left[:, column], line, linewidth=wide, color=colour_of(name), label=label)
            axes.set(title=optimiser, xlabel="step", ylabel="distance from the minimum")
        plane.legend(fontsize=8)
        panels[0].legend(fontsize=8)
        save(figure, file)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
