"""How a round's cost grows with silos and with parameters, as a picture and as numbers.

`python -m benchmarks.curves docs/images/scale.png` draws it and prints a Markdown table. One process, one
thread; each point is the median of a few rounds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks.federations import color_mnist_like
from fedilc import train
from fedilc.config import read_experiment
from fedilc.models import build_model
from fedilc.report.plots import STYLE, colour_of, save

SILOS = (10, 30, 100, 300, 1000, 3000)
WIDTHS = (32, 128, 390, 900, 2000, 3600)
ALGORITHMS = ("fedsgd", "geometric", "fishr-inter-geo")
EXAMPLES = 200
Curve = list[tuple[int, float]]


def by_silos(algorithm: str) -> Curve:
    """Seconds per round over silos of 20 examples that are opened one at a time."""
    found = []
    for silos in SILOS:
        settings, home = read_experiment("many-silos", [f"data.silos={silos}"])
        store = settings.data.store(0, home)
        model = settings.model.of_shape(store.inputs, store.outputs, 0)
        found.append((silos, _seconds(lambda out, s=store, m=model: _train(s, m, algorithm, out))))
    return found


def by_parameters(algorithm: str) -> Curve:
    """Seconds per round over five silos of 200 examples, with ever wider networks."""
    federation = color_mnist_like(5, EXAMPLES)
    found = []
    for width in WIDTHS:
        model = build_model("mlp", federation.inputs, 1, 0, hidden=[width, width])
        size = sum(parameter.numel() for parameter in model.parameters())
        found.append((size, _seconds(lambda out, m=model: _train(federation, m, algorithm, out))))
    return found


def _train(data: object, model: torch.nn.Module, algorithm: str, stamps: list[float]) -> None:
    note = [lambda _: stamps.append(time.perf_counter())]
    train(data, model, algorithm, rounds=5, learning_rate=1e-3, evaluate_every=1000, callbacks=note)


def _seconds(run: Callable[[list[float]], None]) -> float:
    """The median of the rounds that evaluate nothing and are not the first."""
    stamps: list[float] = []
    run(stamps)
    return statistics.median(after - before for before, after in pairwise(stamps[:4]))


def draw(curves: dict[str, tuple[Curve, Curve]], path: Path) -> None:
    """Two panels with logarithmic axes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=False)
        for algorithm, (silos, parameters) in curves.items():
            for axes, curve in ((left, silos), (right, parameters)):
                xs, ys = zip(*curve, strict=True)
                axes.loglog(xs, ys, marker="o", markersize=4, color=colour_of(algorithm), label=algorithm)
        left.set(xlabel="silos of 20 examples, opened one at a time", ylabel="seconds per round")
        right.set(xlabel=f"parameters; five silos of {EXAMPLES} examples")
        left.legend()
        save(figure, path)


def main() -> None:
    """Measure, draw, and print."""
    torch.set_num_threads(1)
    curves = {name: (by_silos(name), by_parameters(name)) for name in ALGORITHMS}
    draw(curves, Path(sys.argv[1]))
    for which, title in ((0, "silos"), (1, "parameters")):
        sizes = [size for size, _ in curves[ALGORITHMS[0]][which]]
        print(f"\n| {title} | " + " | ".join(f"{size:,}" for size in sizes) + " |")
        print("|---|" + "---:|" * len(sizes))
        for name in ALGORITHMS:
            print(f"| {name} | " + " | ".join(f"{s:.3g} s" for _, s in curves[name][which]) + " |")


if __name__ == "__main__":
    main()
