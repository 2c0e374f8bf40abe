"""The settings of the first minute are those that the silos chose in the committed runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.first_minute import EXPERIMENT, LAMBDAS, chosen, means, read_rows, table

from fedilc.config import read_experiment

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / EXPERIMENT
ROWS = read_rows(RESULTS / "runs.csv")
BY = {(row["algorithm"], row["lambda"], row["seed"]): row["new site"] for row in ROWS}
SEEDS = {row["seed"] for row in ROWS}
MATCHED = ("fedcurv", "fishr-inter-geo")


@pytest.mark.parametrize("algorithm", MATCHED)
def test_lambda_is_the_one_that_the_silos_chose(algorithm: str) -> None:
    assert read_experiment(EXPERIMENT)[0].penalty_weight == chosen(ROWS, algorithm)


def test_the_table_is_that_of_the_runs_and_the_page_has_it() -> None:
    lines = table(ROWS)
    assert (RESULTS / "table.md").read_text() == "\n".join(lines) + "\n"
    page = (ROOT / "docs" / "research" / "effects.md").read_text()
    shown = [line for line in lines[2:-2] if "lambda" not in line or "lambda 3000" in line]
    assert len(shown) == 4
    assert [line for line in shown if line not in page] == []


def test_other_rules_choose_what_the_page_says() -> None:
    worst, validation = means(ROWS, "worst silo"), means(ROWS, "validation")
    kept = [("fedsgd", 0.0), *(("fishr-inter-geo", value) for value in LAMBDAS)]
    assert max(kept, key=worst.__getitem__)[1] == 300.0
    assert max(kept, key=validation.__getitem__)[1] == 0.0


@pytest.mark.parametrize("algorithm", MATCHED)
def test_in_every_seed_averaging_is_misled_at_the_new_site_and_a_penalty_less(algorithm: str) -> None:
    assert len(SEEDS) >= 5
    for seed in SEEDS:
        base = BY["fedsgd", 0.0, seed]
        assert base < 0.5
        assert all(BY[algorithm, value, seed] > base for value in LAMBDAS)
        assert BY[algorithm, 3000.0, seed] > base + 0.1


def test_the_penalty_does_the_work_and_without_the_geometric_mean_it_costs_less_at_the_silos() -> None:
    site, silos = means(ROWS, "new site"), means(ROWS, "validation")
    assert abs(site["geometric", 0.0] - site["fedsgd", 0.0]) < 0.05
    assert abs(site["fedcurv", 3000.0] - site["fishr-inter-geo", 3000.0]) < 0.05
    assert silos["fedcurv", 3000.0] > silos["fishr-inter-geo", 3000.0] + 0.03
