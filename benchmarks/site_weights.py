"""Whether small sites should count less: shrinkage of sites with few rows or few events, chosen inside.

Twenty sites of 20 to 150 rows with heavy tails and codes, with usual and with few events. fedsgd trains the
network of a study (one hidden layer of 32, robust scaling) with sites that count equally, by their rows n, by
their events m (of the rarer class), or by n / (n + 50) and m / (m + 10), which tend to 1 at large sites. Rate
and round are chosen as in a study, at a fourth of the sites that is left out in turn; "chosen inside" also
takes the weights of lowest loss there. Models are scored at ten large new sites. Differences from equal
weights are paired by table.

    python -m benchmarks.site_weights --out results/study-defaults
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.study_defaults import family_of, linear
from benchmarks.study_margins import with_interval
from fedilc.data.silo import Silo
from fedilc.data.tables.silo_tables import tables_of
from fedilc.data.tables.table_settings import TableSettings
from fedilc.evaluation.metrics import areas
from fedilc.seeds import numpy_generator
from fedilc.studies.study.data import StudyTables
from fedilc.studies.study.fits import Examples, Fit, Fitted, fit_all

SITES, NEW, GROUPS, ROUNDS = 20, 10, 4, 60
RATES = (0.01, 0.03)
FAMILIES = {"small sites": -0.5, "small sites, few events": -2.5}  # the mean log odds
EQUAL, INSIDE = "equal", "chosen inside"
Counts = NDArray[np.float64]
WEIGHTS: Mapping[str, Callable[[Counts, Counts], Counts]] = {
    EQUAL: lambda n, _: np.ones_like(n),
    "n": lambda n, _: n,
    "n / (n + 50)": lambda n, _: n / (n + 50),
    "m + 1": lambda _, m: m + 1,
    "(m + 1) / (m + 10)": lambda _, m: (m + 1) / (m + 10),
}
SCORES = ("auroc", "log_loss")
COLUMNS = ("family", "table", "weights", "used", "loss", "rate", "round", *SCORES)
Row = Mapping[str, str]


def rows_of(family: str, table: int) -> list[Row]:
    """Return the settings, losses inside and scores at new sites of every weighting of one table."""
    random = numpy_generator(table, "site-weights", family)
    frames = family_of(random, SITES, (20, 150), linear, heavy=True, coded=True, start=FAMILIES[family])
    new = family_of(random, NEW, (1000, 1000), linear, heavy=True, coded=True, start=FAMILIES[family])
    frames |= {f"new-{name}": frame for name, frame in new.items()}
    data = StudyTables.of(family, tables_of(frames, TableSettings(label="y")))
    names = tuple(name for name in frames if not name.startswith("new-"))
    groups = [names[place::GROUPS] for place in range(GROUPS)]
    asked = [(name, rate) for name in WEIGHTS for rate in RATES]
    options = {"rounds": ROUNDS, "score_every": 3}
    inside: list[Fit] = []
    for group in groups:
        training = [name for name in names if name not in group]
        silos, scored = silos_of(data, training), examples_of(data, training, group)
        inside += [fit_of(silos, name, {**options, "learning_rate": rate}, scored) for name, rate in asked]
    curves = [one.curve for one in fit_all(data, inside)]
    best: dict[str, tuple[float, float, int]] = {}
    for place, (name, rate) in enumerate(asked):
        for number in curves[place]:
            found = [
                loss
                for curve in curves[place :: len(asked)]
                for loss in curve[number].values()
                if np.isfinite(loss)
            ]
            best[name] = min(best.get(name, (np.inf, 0.0, 0)), (fmean(found), rate, int(number)))
    best[INSIDE] = min(best.values())
    used = [name if name in WEIGHTS else min(WEIGHTS, key=lambda one: best[one]) for name in best]
    silos = silos_of(data, names)
    finals = [
        fit_of(silos, weights, {"rounds": best[name][2], "learning_rate": best[name][1]}, {})
        for name, weights in zip(best, used, strict=True)
    ]
    places = examples_of(data, names, [name for name in frames if name not in names])
    return [
        dict(
            zip(
                COLUMNS,
                map(str, (family, table, name, weights, *best[name], *scores(one, places))),
                strict=True,
            )
        )
        for name, weights, one in zip(best, used, fit_all(data, finals), strict=True)
    ]


def silos_of(data: StudyTables, names: Sequence[str]) -> list[Silo]:
    """Return silos with the preprocessing of these sites."""
    return [Silo(name, x, y) for name, (x, y) in examples_of(data, names, names).items()]


def examples_of(data: StudyTables, training: Sequence[str], names: Sequence[str]) -> dict[str, Examples]:
    """Return the inputs and labels of sites, preprocessed by what the training sites hold."""
    return {
        name: (data.inputs(training, name, "robust"), torch.as_tensor(data.labels[name])) for name in names
    }


def fit_of(
    silos: Sequence[Silo], name: str, options: Mapping[str, object], scored: Mapping[str, Examples]
) -> Fit:
    """Return the training of fedsgd with weights of sites."""
    n = np.array([len(silo.y) for silo in silos], float)
    events = np.array([float(np.sum(np.asarray(silo.y) > 0)) for silo in silos])
    weights = WEIGHTS[name](n, np.minimum(events, n - events))
    by_site = {silo.name: float(weight) for silo, weight in zip(silos, weights, strict=True)}
    return Fit(silos, (32,), "fedsgd", {**options, "silo_weights": by_site}, 0, scored)


def scores(model: Fitted, places: Mapping[str, Examples]) -> tuple[float, float]:
    """Return the mean AUROC and log loss of a model over sites."""
    found = []
    for x, y in places.values():
        logits, labels = model.predict(x)[:, 0].double(), y.double()
        area = float(areas(y.numpy() > 0, logits.numpy(), np.ones((1, len(y))))[0][0])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        found.append((area, float(loss)))
    return fmean(area for area, _ in found), fmean(loss for _, loss in found)


def page(rows: Sequence[Row]) -> str:
    """Return the tables in Markdown."""
    tables = len({row["table"] for row in rows})
    lines = [
        f"Weights of sites in fedsgd, minus equal weights, over {tables} tables of {SITES} sites of 20 to "
        "150 rows (95 % t-intervals over tables): n rows, m of the rarer class. `python -m "
        "benchmarks.site_weights` says how settings are chosen."
    ]
    for family in FAMILIES:
        mine = {(row["table"], row["weights"]): row for row in rows if row["family"] == family}
        numbers = list(dict.fromkeys(table for table, _ in mine))
        equal = [fmean(float(mine[table, EQUAL][score]) for table in numbers) for score in SCORES]
        lines += ["", f"**{family}**, equal weights: AUROC {equal[0]:.3f}, log loss {equal[1]:.3f}", ""]
        lines += ["| weights | AUROC | log loss | lowest loss inside |", "|---|--:|--:|--:|"]
        taken = [mine[table, INSIDE]["used"] for table in numbers]
        for name in (*WEIGHTS, INSIDE):
            cells = [
                with_interval(
                    [float(mine[table, name][score]) - float(mine[table, EQUAL][score]) for table in numbers]
                )
                for score in SCORES
            ]
            count = f"{taken.count(name)} of {len(numbers)}" if name in WEIGHTS else ""
            lines.append(f"| {name} | {' | '.join(cells)} | {count} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train all tables, print the comparison, and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site_weights", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/study-defaults"))
    parser.add_argument("--tables", type=int, default=8, help="synthetic tables per family")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for family in FAMILIES:
        for table in range(arguments.tables):
            rows += rows_of(family, table)
            print(f"{family}, table {table}: done", flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "site-weights.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    text = page(rows)
    (arguments.out / "site-weights.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
