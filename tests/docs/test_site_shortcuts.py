"""What the pages on effects and algorithms say about shortcuts of single sites is in the committed runs."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.site_shortcuts import AGREED, EXPERIMENT, SHOWN, ceiling, chosen, means, read_rows, table

from fedilc.config import read_experiment

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / EXPERIMENT
ROWS = read_rows(RESULTS / "runs.csv")
EFFECTS = (ROOT / "docs" / "research" / "effects.md").read_text()
PAGE = (ROOT / "docs" / "reference" / "algorithms.md").read_text()


def plain(text: str) -> str:
    return text.replace("`", "")


def test_lambda_is_the_one_with_the_highest_accuracy_at_left_out_silos() -> None:
    assert read_experiment(EXPERIMENT)[0].penalty_weight == chosen(ROWS)


def test_the_table_is_that_of_the_runs_and_the_page_has_it() -> None:
    lines = table(ROWS)
    assert (RESULTS / "table.md").read_text() == "\n".join(lines) + "\n"
    known = {line.removeprefix("| 10, SGD ") for line in lines}
    heading = "| accuracy at the last round, five seeds, SGD at the server |"
    shown = plain(EFFECTS).split(heading)[1].split("\n\n")[0].splitlines()[2:]
    assert len(shown) == 6
    assert [line for line in shown if line not in known] == []
    for value in (1.0, 10.0):
        mean = means(ROWS, "new site", silos=10, server="SGD")["fishr-inter-geo", value]
        assert f"{mean:.3f} for {value:g}" in " ".join(EFFECTS.split())
    assert f"exceed {ceiling():.3f} at the new site" in EFFECTS


def test_the_page_has_the_means_of_every_number_of_silos_and_server() -> None:
    columns = [(10, "SGD"), (10, "Adam"), (5, "SGD"), (5, "Adam")]
    for method in SHOWN:
        value = chosen(ROWS) if method in ("fedcurv", "fishr-inter-geo") else 0.0
        found = [means(ROWS, "new site", silos=n, server=server)[method, value] for n, server in columns]
        name = f"{method}, lambda {value:g}" if value else method
        assert f"| {name} | {' | '.join(f'{number:.3f}' for number in found)} |" in plain(PAGE)
    for method in ("fedavg", "fedavg-geo"):
        mean = means(ROWS, "new site", silos=10, server="SGD")[method, 0.0]
        assert re.search(rf"`{method}`[^|]*? {mean:.3f}", PAGE)


def test_in_every_seed_the_geometric_mean_removes_what_fishr_does_not() -> None:
    by = {
        (row["method"], row["lambda"], row["seed"]): row["new site"]
        for row in ROWS
        if (row["silos"], row["server"]) == (10, "SGD")
    }
    for seed in {row["seed"] for row in ROWS}:
        base = by["fedsgd", 0.0, seed]
        assert min(by[name, 0.0, seed] for name in ("geometric", AGREED)) > base + 0.05
        assert abs(by["fedcurv", 0.1, seed] - base) < 0.02
