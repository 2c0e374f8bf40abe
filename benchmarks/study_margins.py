"""How clearly a method must beat the regression before a study takes it, on synthetic tables of sites.

The families are those of `study_defaults` and both kinds of shortcut of `shortcut_maps`. Every table is
studied once, each of its sites held out, with the default methods but at less cost: two rates, one penalty
weight, three ridges, 60 rounds, one seed. All rules are then applied to the same runs, so that they differ in
the method that they take and in nothing else. On small sites two ways to trust a small site less are compared
too. Everything is compared with logistic regression of the pooled data, whose ridge is chosen by the same
rule. What is done is not done again: interrupt and repeat the command.

    python -m benchmarks.study_margins --tables 3 --out results/study-defaults
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy.stats import t as student

from benchmarks.shortcut_maps import OWN, SHARED, Cell
from benchmarks.study_defaults import FAMILIES, SCORES
from fedilc import algorithms
from fedilc.data.tables.silo_tables import tables_of
from fedilc.data.tables.table_settings import TableSettings
from fedilc.seeds import numpy_generator
from fedilc.studies.study.choice import CLEARLY, LEAST_GAIN, Choice
from fedilc.studies.study.data import StudyTables
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.run import run_study
from fedilc.studies.study.settings import ALGORITHMS, StudySettings

REGRESSION, POOLED = "logistic", "pooled logistic regression"
SMALL = "small sites, coded"
WEIGHTED = "fedsgd, sites weighted by examples"
DECAYED = "fedsgd, weight decays up to 0.1"
STUDY = StudySettings(
    algorithms=(*ALGORITHMS, REGRESSION),
    seeds=1,
    rounds=60,
    learning_rates=(0.01, 0.03),
    local_learning_rates=(0.03, 0.1),
    penalty_weights=(1.0,),
    weight_decays=(0.001, 0.01, 0.1),
    geometric_networks=(),
    references=False,
)
AGREED, LINEAR_TOO = "agreed-geometric", "agreed-geometric, a linear network too"
LINEAR = replace(STUDY, algorithms=("fedsgd", AGREED, REGRESSION), geometric_networks=((),))
PLAIN = replace(STUDY, algorithms=(REGRESSION,), scalings=("moments",))
SHRUNK: Mapping[str, tuple[str, StudySettings]] = {
    WEIGHTED: (WEIGHTED, replace(STUDY, algorithms=(WEIGHTED, REGRESSION))),
    DECAYED: (
        "fedsgd",
        replace(STUDY, algorithms=("fedsgd", REGRESSION), network_decays=(0.0, 0.01, 0.1)),
    ),
}
COLUMNS = ("family", "table", "site", "method", "loss", "gain", "error", "scored", *SCORES)
SHORTCUTS = {
    "a shortcut of each site": replace(OWN, sites=6),
    "a shared shortcut": replace(SHARED, sites=6),
}
NAMES = (*FAMILIES, *SHORTCUTS)
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """By how much the loss of a method must be lower than the regression's.

    Attributes:
        errors: standard errors over the scored sites; a level such as 0.9 with `student`.
        least: the least difference, in log loss per example.
        student: whether `errors` is the one-sided level of Student's t with one degree less than sites.
    """

    errors: float
    least: float = 0.0
    student: bool = False

    def __str__(self) -> str:
        """Return the rule in words."""
        errors = f"{self.errors:g} standard error{'s' * (self.errors != 1)}"
        if self.student:
            errors = f"Student's t, one-sided {self.errors:g}"
        return f"{errors}, at least {self.least:g}"

    def takes(self, gain: float, error: float, scored: int) -> bool:
        """Return whether a method with this difference, and its standard error, is taken."""
        errors = float(student.ppf(self.errors, scored - 1)) if self.student else self.errors
        return gain > errors * error and gain >= self.least


LEAST = (0.0, 0.005, 0.01, 0.02)
RULES = (
    *(Rule(errors, least) for errors in (0.0, 1.0, 2.0) for least in LEAST),
    *(Rule(level, least, student=True) for level in (0.9, 0.95) for least in LEAST),
)
ERROR_ALONE = Rule(1.0)


def frames_of(family: str, table: int) -> dict[str, pl.DataFrame]:
    """Return a table per site."""
    if family in FAMILIES:
        return FAMILIES[family](numpy_generator(table, "study-defaults", family))
    cell: Cell = SHORTCUTS[family]
    silos = cell.federation(table)[0].silos
    return {
        silo.name: pl.DataFrame(
            {f"x{place}": np.asarray(column) for place, column in enumerate(silo.x.T)}
            | {"y": np.asarray(silo.y).astype(int)}
        )
        for silo in silos
    }


def gain_of(method: Choice, plain: Choice) -> tuple[float, float, int]:
    """Return how much lower a method's loss is, the standard error over scored sites, and their number."""
    gains = [plain.losses[silo] - loss for silo, loss in method.losses.items() if silo in plain.losses]
    error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    return plain.loss - method.loss, error, len(gains)


def scored(family: str, table: int, folder: Path) -> Iterator[Row]:
    """Yield the loss inside and the scores at the held-out site of every method, by held-out site."""
    data = StudyTables.of(family, tables_of(frames_of(family, table), TableSettings(label="y")))

    def rows(result: StudyResult, names: Mapping[str, str]) -> Iterator[Row]:
        for site, choices in result.choices.items():
            for method, name in names.items():
                gain = gain_of(choices[method], choices[REGRESSION])
                scores = [result.scores[site][method][score].value for score in SCORES]
                facts = (family, table, site, name, choices[method].loss, *gain, *scores)
                yield dict(zip(COLUMNS, facts, strict=True))

    yield from rows(run_study(StudyPlan(data, PLAIN), folder), {REGRESSION: POOLED})
    yield from rows(run_study(StudyPlan(data, STUDY), folder), {name: name for name in STUDY.algorithms})
    yield from rows(run_study(StudyPlan(data, LINEAR), folder), {AGREED: LINEAR_TOO})
    for name, (method, settings) in SHRUNK.items() if family == SMALL else ():
        yield from rows(run_study(StudyPlan(data, settings), folder), {method: name})


Sites = dict[tuple[str, str, str], dict[str, Row]]


def by_site(rows: Sequence[Row]) -> Sites:
    """Return the rows by family, table and site, then by method."""
    found: Sites = {}
    for row in rows:
        found.setdefault((row["family"], row["table"], row["site"]), {})[row["method"]] = row
    return found


def taken(methods: Mapping[str, Row], rule: Rule, offered: Sequence[str] = STUDY.algorithms) -> str:
    """Return the method that a rule takes for a held-out site, of those that are offered."""
    best = min(offered, key=lambda name: float(methods[name]["loss"]))
    row = methods[best]
    beats = rule.takes(float(row["gain"]), float(row["error"]), int(row["scored"]))
    return best if best == REGRESSION or beats else REGRESSION


Procedure = Callable[[Mapping[str, Row]], str]


def differences(sites: Sites, procedure: Procedure, other: Procedure, score: str) -> dict[str, list[float]]:
    """Return by family the mean paired difference over sites of each table."""
    found: dict[tuple[str, str], list[float]] = {}
    for (family, table, _), methods in sites.items():
        ours, theirs = (float(methods[one(methods)][score]) for one in (procedure, other))
        if np.isfinite([ours, theirs]).all():
            found.setdefault((family, table), []).append(ours - theirs)
    means: dict[str, list[float]] = {}
    for (family, _), values in found.items():
        means.setdefault(family, []).append(fmean(values))
    return means


def with_interval(values: Sequence[float]) -> str:
    """Return the mean with its 95 % t-interval."""
    if len(values) < 2:
        return f"{fmean(values):+.4f}"
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return f"{fmean(values):+.4f} ({fmean(values) - half:+.4f} to {fmean(values) + half:+.4f})"


def page(rows: Sequence[Row]) -> str:
    """Return the tables in Markdown."""
    sites = by_site(rows)
    tables = len({(family, table) for family, table, _ in sites})
    used = [name for name in NAMES if any(name == family for family, _, _ in sites)]

    def ruled(rule: Rule) -> Procedure:
        return lambda methods: taken(methods, rule)

    lines = [
        f"## Rules, minus {ERROR_ALONE}, over {tables} tables (95 % t-intervals over tables)",
        "",
        "| rule | AUROC | log loss | another method than the regression taken | of these, log loss at the "
        "held-out site higher than the regression's by more than .01 |",
        "|---|--:|--:|--:|--:|",
    ]
    for rule in RULES:
        cells = [
            with_interval(
                [v for vs in differences(sites, ruled(rule), ruled(ERROR_ALONE), score).values() for v in vs]
            )
            for score in SCORES
        ]
        others = [methods for methods in sites.values() if taken(methods, rule) != REGRESSION]
        harm = [
            float(methods[taken(methods, rule)]["log_loss"]) - float(methods[REGRESSION]["log_loss"])
            for methods in others
        ]
        worse = sum(value > 0.01 for value in harm)
        lines.append(f"| {rule} | {' | '.join(cells)} | {len(others)} of {len(sites)} | {worse} |")
    lines += ["", f"## Rules, minus {POOLED}, by family (AUROC; log loss)", ""]
    lines += [f"| rule | {' | '.join(used)} |", f"|---|{'--:|' * len(used)}"]
    procedures: dict[str, Procedure] = {str(rule): ruled(rule) for rule in RULES}
    procedures |= {f"always {name}": lambda _, name=name: name for name in STUDY.algorithms}
    for label, procedure in procedures.items():
        both = [differences(sites, procedure, lambda _: POOLED, score) for score in SCORES]
        cells = ["; ".join(f"{fmean(found[family]):+.3f}" for found in both) for family in used]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    lines += ["", "## A linear network too for agreed-geometric, minus without it (AUROC; log loss)", ""]
    lines += ["| family | the procedure | agreed-geometric itself | taken |", "|---|--:|--:|--:|"]
    offered = [LINEAR_TOO if name == AGREED else name for name in STUDY.algorithms]
    usual = Rule(CLEARLY, LEAST_GAIN)
    for family in (*used, "all"):
        mine = {key: methods for key, methods in sites.items() if family in (key[0], "all")}
        pairs = [
            (lambda methods: taken(methods, usual, offered), ruled(usual)),
            (lambda _: LINEAR_TOO, lambda _: AGREED),
        ]
        cells = []
        for ours, theirs in pairs:
            both = [
                [v for values in differences(mine, ours, theirs, score).values() for v in values]
                for score in SCORES
            ]
            cells.append("; ".join(with_interval(values) for values in both))
        count = sum(taken(methods, usual, offered) == LINEAR_TOO for methods in mine.values())
        was = sum(taken(methods, usual) == AGREED for methods in mine.values())
        lines.append(f"| {family} | {' | '.join(cells)} | {count} of {len(mine)} (without: {was}) |")
    small = {key: methods for key, methods in sites.items() if key[0] == SMALL}
    if small:
        lines += ["", f"## {SMALL.capitalize()}: minus fedsgd", "", "| change | AUROC | log loss |"]
        lines += ["|---|--:|--:|"]
        for name in SHRUNK:
            cells = [
                with_interval(differences(small, lambda _, name=name: name, lambda _: "fedsgd", score)[SMALL])
                for score in SCORES
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Do the studies that are not done yet, print the tables, and write them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study_margins", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/study-defaults"))
    parser.add_argument("--runs", type=Path, default=Path("runs/study-margins"), help="where runs are kept")
    parser.add_argument("--tables", type=int, default=3, help="synthetic tables per family")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    algorithms.register(WEIGHTED, replace(algorithms.get("fedsgd"), silo_weights="examples"))
    rows: list[Row] = []
    for table in range(arguments.tables):
        for family in NAMES:
            file = arguments.runs / f"{family}-{table}.csv"
            if not file.exists():
                write(file, list(scored(family, table, arguments.runs / f"{family}-{table}")))
            with file.open(encoding="utf-8") as opened:
                rows += csv.DictReader(opened)
            print(f"{family}, table {table}: done", flush=True)
    write(arguments.out / "margins.csv", rows)
    text = page(rows)
    (arguments.out / "margins.md").write_text(text, encoding="utf-8")
    print(text)


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
