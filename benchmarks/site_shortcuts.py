"""Sites that each have a shortcut of their own: which part of an algorithm removes it, with which server.

Every model is that of the last round. "Left-out silos" is the accuracy at two silos that did not train,
other ones in each seed, which a user can do without a new site. Lambda is the one of highest accuracy there.
The recipe was made to show the effect: markers with an effect of 1 and 2 were tried before 1.5 was kept, and
with both the geometric mean was better at the new site too.

    python -m benchmarks.site_shortcuts --out results/site-shortcuts --picture docs/images/site-shortcuts.png
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator
from sklearn.linear_model import LogisticRegressionCV

from fedilc import Federation, train
from fedilc.config import read_experiment
from fedilc.report.plots import COLOURS, STYLE, save

EXPERIMENT = "site-shortcuts"
LAMBDAS = (0.1, 1.0, 10.0)
POOLED = "logistic regression of the pooled data"
AGREED = "geometric, agreement 0.5"
SHOWN = ("fedsgd", "fedcurv", "fishr-inter-geo", "geometric", AGREED)
ADAM = ("optimizer=adam", "learning_rate=0.03")
BRIEF = ("rounds=20",)  # as many passes over a silo's examples: a round of fedavg has one epoch of ten steps
LEFT_OUT = 2
COLUMNS = ("silos", "server", "method", "lambda", "seed", "new site", "validation", "left-out silos")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """One row of the tables, which is trained once per seed."""

    method: str
    silos: int = 10
    server: str = "SGD"
    penalty_weight: float = 0.0
    leave_out: bool = False

    def run(self, seed: int) -> Row:
        """Return the accuracies of one seed."""
        torch.set_num_threads(1)
        name, _, agreement = self.method.partition(", agreement ")
        asked = [f"seed={seed}", f"data.silos={self.silos}"]
        if self.method != POOLED:
            asked += [f"algorithm={name}", *(ADAM if self.server == "Adam" else ())]
            asked += [f"agreement={agreement}"] if agreement else []
            asked += [f"penalty_weight={self.penalty_weight}"] if self.penalty_weight else []
            asked += BRIEF if name.startswith("fedavg") else ()
        settings, folder = read_experiment(EXPERIMENT, asked)
        federation = settings.data.build(seed, folder)

        def trained(some: Federation) -> Mapping[str, Any]:
            options = settings.options() | {"evaluate_every": settings.rounds}
            return train(some, settings.model.build(some, seed), name, **options).history[-1]

        last = _pooled(federation) if self.method == POOLED else trained(federation)
        left = trained(_without_two(federation, seed))["test_accuracy"] if self.leave_out else ""
        facts = (self.silos, self.server, self.method, self.penalty_weight, seed)
        found = (last["test_accuracy"], last["validation_accuracy"], left)
        return dict(zip(COLUMNS, (*facts, *found), strict=True))


def _without_two(federation: Federation, seed: int) -> Federation:
    """Return the federation of all silos but two, which are the test set."""
    silos = federation.silos
    places = {LEFT_OUT * seed % len(silos), (LEFT_OUT * seed + 1) % len(silos)}
    others = [silo for place, silo in enumerate(silos) if place not in places]
    x, y = (torch.cat([getattr(silos[place], key) for place in sorted(places)]) for key in "xy")
    return Federation(federation.name, others, x, y, loss="binary")


def _pooled(federation: Federation) -> Mapping[str, float]:
    """Return the accuracies of scikit-learn's logistic regression, whose penalty is cross-validated."""
    x, y = (np.concatenate([getattr(silo, key) for silo in federation.silos]) for key in "xy")
    model = LogisticRegressionCV(
        cv=5, max_iter=1000, scoring="neg_log_loss", l1_ratios=(0,), use_legacy_attributes=False
    ).fit(x, y)

    def right(x: Any, y: Any) -> float:
        return float((model.predict(x) == np.asarray(y)).mean())

    silos = [right(silo.x_val, silo.y_val) for silo in federation.silos]
    return {
        "test_accuracy": right(federation.x_test, federation.y_test),
        "validation_accuracy": fmean(silos),
    }


def settings_to_run(chosen_lambda: float | None = None) -> list[Setting]:
    """Return what is trained before lambda is chosen, or after it."""
    if chosen_lambda is None:
        plain = [Setting(name, leave_out=True) for name in ("fedsgd", "geometric", AGREED)]
        matched = [
            Setting(name, penalty_weight=value, leave_out=True)
            for name in ("fedcurv", "fishr-inter-geo")
            for value in LAMBDAS
        ]
        return [*plain, *matched, Setting("fedavg"), Setting("fedavg-geo"), Setting(POOLED)]
    return [
        Setting(name, silos, server, chosen_lambda if name in ("fedcurv", "fishr-inter-geo") else 0.0)
        for silos, server in ((10, "Adam"), (5, "SGD"), (5, "Adam"))
        for name in SHOWN
    ]


def means(rows: Sequence[Row], column: str, **wanted: Any) -> dict[tuple[str, float], float]:
    """Return the means over seeds by method and lambda, of the rows with these values.

    >>> rows = [{"method": "a", "lambda": 1.0, "silos": 5, "new site": value} for value in (0.5, 0.7)]
    >>> means(rows, "new site", silos=5)
    {('a', 1.0): 0.6}
    """
    found: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        if all(row[key] == value for key, value in wanted.items()) and row[column] != "":
            found.setdefault((row["method"], row["lambda"]), []).append(row[column])
    return {key: fmean(values) for key, values in found.items()}


def chosen(rows: Sequence[Row], method: str = "fishr-inter-geo") -> float:
    """Return the lambda with the highest accuracy at left-out silos."""
    left = means(rows, "left-out silos", silos=10, server="SGD", method=method)
    return max(left, key=left.__getitem__)[1]


def table(rows: Sequence[Row]) -> list[str]:
    """Return the means and deviations over seeds as Markdown."""
    seeds = len({row["seed"] for row in rows})
    lines = [
        f"| silos, server | method | new site | silos | left-out silos |\n|{'---|' * 5}",
    ]
    for silos, server in ((10, "SGD"), (10, "Adam"), (5, "SGD"), (5, "Adam")):
        for method, value in means(rows, "new site", silos=silos, server=server):
            these = [
                row
                for row in rows
                if (row["silos"], row["server"], row["method"], row["lambda"])
                == (silos, server, method, value)
            ]
            cells = [_cell([row[column] for row in these]) for column in COLUMNS[5:]]
            name = f"{method}, lambda {value:g}" if value else method
            lines.append(f"| {silos}, {server} | {name} | {' | '.join(cells)} |")
    best = f"No model can do better at the new site than {ceiling():.3f} in expectation."
    return [
        *"\n".join(lines).split("\n"),
        "",
        f"Accuracy at the last round, {seeds} seeds. Lambda {chosen(rows):g} is chosen. {best}",
    ]


def _cell(values: Sequence[Any]) -> str:
    return "-" if "" in values else f"{fmean(values):.3f} ± {stdev(values):.3f}"


def ceiling() -> float:
    """Return the expected accuracy at the new site of the model that knows how the data are made."""
    data: Any = read_experiment(EXPERIMENT)[0].data
    return NormalDist().cdf(data.effect * data.features**0.5)


def picture(path: Path, rows: Sequence[Row]) -> None:
    """Draw the accuracy at the new site of each method, per seed and as a mean, with either server."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 3.9), layout="constrained")
        for axes, silos in zip(figure.subplots(1, 2, sharex=True, sharey=True), (10, 5), strict=True):
            for place, method in enumerate(SHOWN):
                for offset, server, colour in ((-0.14, "SGD", COLOURS[0]), (0.14, "Adam", COLOURS[1])):
                    value = chosen(rows) if method in ("fedcurv", "fishr-inter-geo") else 0.0
                    wanted = (silos, server, method, value)
                    keys = ("silos", "server", "method", "lambda")
                    found = [row["new site"] for row in rows if tuple(row[key] for key in keys) == wanted]
                    height = len(SHOWN) - place - offset
                    axes.plot(found, [height] * len(found), "o", color=colour, markersize=3, alpha=0.45)
                    label = f"{server} at the server" if not place else None
                    axes.plot(fmean(found), height, "D", color=colour, markersize=7, label=label)
            axes.axvline(ceiling(), color="black", linestyle="--", linewidth=1)
            axes.xaxis.set_major_locator(MultipleLocator(0.05))
            axes.set(title=f"{'ten' if silos == 10 else 'five'} silos", xlabel="accuracy at the new site")
            axes.set_yticks(range(len(SHOWN), 0, -1), SHOWN)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        line = figure.axes[0].lines[-1]
        figure.legend(
            [*handles, line], [*labels, "best possible"], loc="outside lower center", ncols=len(labels) + 1
        )
        save(figure, path)


def read_rows(path: Path) -> list[Row]:
    """Return the runs of a file."""
    with path.open() as file:
        return [
            {
                key: value if key in ("server", "method") or not value else float(value)
                for key, value in row.items()
            }
            for row in csv.DictReader(file)
        ]


def main() -> None:
    """Train all, and write a table of single runs, one of means, and the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site_shortcuts", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    rows: list[Row] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for settings in (settings_to_run(), None):
            tasks = [
                (one, seed)
                for one in settings or settings_to_run(chosen(rows))
                for seed in range(given.seeds)
            ]
            rows += pool.map(Setting.run, *zip(*tasks, strict=True))
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(
            {key: f"{value:g}" if isinstance(value, float) else value for key, value in row.items()}
            for row in rows
        )
    written = read_rows(given.out / "runs.csv")
    lines = table(written)
    (given.out / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    if given.picture is not None:
        picture(given.picture, written)


if __name__ == "__main__":
    main()
