"""The settings of the first minute are those that the silos chose in the committed runs."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean

from benchmarks.first_minute import EXPERIMENT, LAMBDAS, chosen, table

from fedilc.config import read_experiment

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / EXPERIMENT


def rows() -> list[dict[str, float]]:
    with (RESULTS / "runs.csv").open() as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def test_lambda_is_the_one_that_the_silos_chose() -> None:
    assert read_experiment(EXPERIMENT)[0].penalty_weight == chosen(rows())


def test_the_table_is_that_of_the_runs_and_the_readme_has_it() -> None:
    lines = table(rows())
    assert (RESULTS / "table.md").read_text() == "\n".join(lines) + "\n"
    readme = (ROOT / "README.md").read_text()
    for line in lines[2:-2]:
        if line.startswith(("| 0 ", f"| {chosen(rows()):g} ")):
            assert line.split("|", 2)[2].strip() in readme


def test_other_rules_choose_what_the_readme_says() -> None:
    def mean(column: str) -> dict[float, float]:
        return {v: fmean(r[column] for r in rows() if r["lambda"] == v) for v in (0.0, *LAMBDAS)}

    worst, validation = mean("worst silo"), mean("validation")
    assert max(worst, key=worst.__getitem__) == 300.0
    assert max(validation, key=validation.__getitem__) == 0.0
    by = {(row["lambda"], row["seed"]): row["new site"] for row in rows()}
    assert all(by[value, seed] > by[0.0, seed] for value, seed in by if value)


def test_in_every_seed_averaging_is_misled_at_the_new_site_and_the_paper_s_method_less() -> None:
    by = {(row["lambda"], row["seed"]): row["new site"] for row in rows()}
    seeds = {seed for _, seed in by}
    assert len(seeds) >= 5
    for seed in seeds:
        assert by[0.0, seed] < 0.5
        assert by[chosen(rows()), seed] > by[0.0, seed] + 0.1
