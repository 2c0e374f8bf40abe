"""What a study may choose from: each candidate left out or added, on synthetic tables of several sites.

Each table has one signal, and sites that differ. The study is the default one but for its cost: fedsgd beside
the regression, one rate, three ridges, 40 rounds, one seed, and one held-out site of each of the four groups.
Everything is compared with logistic regression of the pooled data, whose ridge is chosen by the same rule.
Variants share their runs, and what is done is not done again: interrupt and repeat the command.

    python -m benchmarks.study_defaults --out results/study-defaults      # --tables 3: more of each
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist, fmean, stdev

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from fedilc.data.tables.silo_tables import tables_of
from fedilc.data.tables.table_settings import TableSettings
from fedilc.seeds import numpy_generator
from fedilc.studies.study.choice import chosen_method
from fedilc.studies.study.data import StudyTables
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.run import run_study
from fedilc.studies.study.settings import StudySettings

Floats = NDArray[np.float64]
SCORES = ("auroc", "log_loss")
COLUMNS = ("family", "table", "variant", "site", "method", *SCORES)
BASE = StudySettings(
    algorithms=("fedsgd", "logistic"),
    seeds=1,
    rounds=40,
    learning_rates=(0.03,),
    weight_decays=(0.001, 0.01, 0.1),
    references=False,
)
PLAIN = replace(BASE, algorithms=("logistic",), scalings=("moments",))
POOLED = "pooled logistic regression"
CHOSEN = "the default"
NETWORK = "always the network"
VARIANTS: Mapping[str, StudySettings] = {
    CHOSEN: BASE,
    "without robust scaling": replace(BASE, scalings=("moments",)),
    "regression with robust scaling": replace(PLAIN, scalings=("robust",)),
    "without weight decay": replace(BASE, network_decays=(0.0,)),
    "with a linear network": replace(BASE, networks=((),)),
    "with a larger network": replace(BASE, networks=((64, 32),)),
    "with averaged weights": replace(BASE, averages=("none", "ema")),
    "with all three": replace(BASE, networks=((), (64, 32)), averages=("none", "ema")),
}
MARGINS = (0.0, 2.0)  # besides that of the study


def family_of(
    random: np.random.Generator,
    sites: int,
    rows: tuple[int, int],
    risk: Callable[[Floats], Floats],
    *,
    heavy: bool = False,
    coded: bool = False,
    unlike: float = 0.3,
    start: float = -0.5,
) -> dict[str, pl.DataFrame]:
    """Return a table per site: six numbers and a label; `risk` gives the log odds.

    Args:
        random: of every number.
        sites: how many.
        rows: the fewest and the most of a site.
        risk: log odds of the numbers before tails are made heavy.
        heavy: whether two columns are the exponential of three times their number.
        coded: whether a tenth of two columns is -9, which means missing.
        unlike: the deviation between sites of the log odds.
        start: their mean.
    """
    found = {}
    for site in range(sites):
        count = int(random.integers(rows[0], rows[1] + 1))
        x = random.normal(0.3 * random.normal(size=6), 1.0, (count, 6))
        odds = risk(x) + start + unlike * random.normal()
        y = random.random(count) < 1 / (1 + np.exp(-odds))
        shown = x.copy()
        if heavy:
            shown[:, :2] = np.exp(3 * x[:, :2])
        if coded:
            shown[:, 2:4][random.random((count, 2)) < 0.1] = -9.0
        columns = {f"x{place}": shown[:, place] for place in range(6)}
        found[f"s{site}"] = pl.DataFrame(columns | {"y": y.astype(int)})
    return found


def linear(x: Floats) -> Floats:
    return x @ np.array([0.8, -0.6, 0.5, 0.3, 0.0, 0.0])


def _curved(x: Floats) -> Floats:
    return 1.2 * x[:, 0] * x[:, 1] + 0.8 * np.abs(x[:, 2]) + 0.5 * x[:, 3] - 0.6


Family = Callable[[np.random.Generator], dict[str, pl.DataFrame]]
FAMILIES: Mapping[str, Family] = {
    "linear": lambda random: family_of(random, 6, (120, 200), linear),
    "heavy tails": lambda random: family_of(random, 6, (120, 200), linear, heavy=True),
    "small sites, coded": lambda random: family_of(random, 16, (20, 150), linear, heavy=True, coded=True),
    "interactions": lambda random: family_of(random, 6, (200, 300), _curved),
    "few events": lambda random: family_of(random, 6, (150, 250), linear, start=-2.8),
    "unlike prevalence": lambda random: family_of(random, 6, (120, 200), linear, unlike=1.2),
}


def scored(family: str, table: int, folder: Path) -> Iterator[dict[str, object]]:
    """Yield the scores of every variant and of the comparator at the held-out sites of one table."""
    frames = FAMILIES[family](numpy_generator(table, "study-defaults", family))
    data = StudyTables.of(family, tables_of(frames, TableSettings(label="y")))
    held_out = data.silos[:4]

    def studied(settings: StudySettings) -> StudyResult:
        return run_study(StudyPlan(data, replace(settings, hold_out=held_out)), folder)

    for variant, settings in {POOLED: PLAIN, **VARIANTS}.items():
        result = studied(settings)
        chosen: dict[str, dict[str, str]] = {variant: result.chosen or dict.fromkeys(held_out, "logistic")}
        if settings == BASE:
            for margin in MARGINS:
                chosen[f"margin {margin:g}"] = {
                    site: chosen_method(found, result.algorithms, "logistic", margin, 0.0)
                    for site, found in result.choices.items()
                }
            chosen["always the regression"] = dict.fromkeys(held_out, "logistic")
        if "fedsgd" in result.algorithms:
            chosen[NETWORK if settings == BASE else f"{NETWORK}, {variant}"] = dict.fromkeys(
                held_out, "fedsgd"
            )
        for name, methods in chosen.items():
            for site, method in methods.items():
                values = {score: result.scores[site][method][score].value for score in SCORES}
                yield {
                    "family": family,
                    "table": table,
                    "variant": name,
                    "site": site,
                    "method": method,
                } | values


def difference(rows: list[dict[str, str]], variant: str, other: str, score: str) -> str:
    """Return the mean paired difference of two variants with its 95 % interval.

    It is over tables; of one table over its sites.
    """

    def by_site(name: str) -> dict[tuple[str, str, str], float]:
        return {
            (row["family"], row["table"], row["site"]): float(row[score])
            for row in rows
            if row["variant"] == name and row[score] != "nan"
        }

    ours, theirs = by_site(variant), by_site(other)
    tables: dict[tuple[str, str], list[float]] = {}
    for key in ours.keys() & theirs.keys():
        tables.setdefault(key[:2], []).append(ours[key] - theirs[key])
    means = [fmean(values) for values in tables.values()]
    if len(means) == 1:
        means = next(iter(tables.values()))
    if not means:
        return "-"
    if len(means) < 2:
        return f"{means[0]:+.3f}"
    half = NormalDist().inv_cdf(0.975) * stdev(means) / len(means) ** 0.5
    return f"{fmean(means):+.3f} ({fmean(means) - half:+.3f} to {fmean(means) + half:+.3f})"


def page(rows: list[dict[str, str]]) -> str:
    """Return the tables in Markdown."""
    lines = [
        f"## The default, minus {POOLED}",
        "",
        "| family | AUROC | log loss | method taken |",
        "|---|--:|--:|---|",
    ]
    for family in [*FAMILIES, ""]:
        own = [row for row in rows if family in ("", row["family"])]
        taken = [row["method"] for row in own if row["variant"] == CHOSEN]
        counts = ", ".join(f"{name} {taken.count(name)}" for name in BASE.algorithms if name in taken)
        cells = [difference(own, CHOSEN, POOLED, score) for score in SCORES]
        lines.append(f"| {family or 'all'} | {' | '.join(cells)} | {counts} |")
    lines += [
        "",
        f"## Each variant, minus {CHOSEN} (of a network, minus {NETWORK}), over all tables",
        "",
        "| variant | AUROC | log loss |",
        "|---|--:|--:|",
    ]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        if variant not in (CHOSEN, POOLED, NETWORK):
            other = NETWORK if variant.startswith(NETWORK) else CHOSEN
            cells = [difference(rows, variant, other, score) for score in SCORES]
            lines.append(f"| {variant} | {' | '.join(cells)} |")
    lines += ["", f"## Each variant, minus {POOLED}, by family (AUROC; log loss)", ""]
    lines += [f"| variant | {' | '.join(FAMILIES)} |", f"|---|{'--:|' * len(FAMILIES)}"]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        if variant != POOLED:
            cells = []
            for family in FAMILIES:
                own = [row for row in rows if row["family"] == family]
                both = [difference(own, variant, POOLED, score).partition(" ")[0] for score in SCORES]
                cells.append("; ".join(both))
            lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Do the studies that are not done yet, print the tables, and write them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study_defaults", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/study-defaults"))
    parser.add_argument("--runs", type=Path, default=Path("runs/study-defaults"), help="where runs are kept")
    parser.add_argument("--tables", type=int, default=1, help="synthetic tables per family")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, str]] = []
    for table in range(arguments.tables):
        for family in FAMILIES:
            file = arguments.runs / f"{family}-{table}.csv"
            if not file.exists():
                found = list(scored(family, table, arguments.runs / f"{family}-{table}"))
                write(file, found)
            with file.open(encoding="utf-8") as opened:
                rows += csv.DictReader(opened)
            print(f"{family}, table {table}: done", flush=True)
    write(arguments.out / "scores.csv", rows)
    text = page(rows)
    (arguments.out / "study-defaults.md").write_text(text, encoding="utf-8")
    print(text)


def write(path: Path, rows: list[dict[str, object]] | list[dict[str, str]]) -> None:
    """Write rows as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
