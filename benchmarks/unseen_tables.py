"""The default study of tables that had no part in choosing its defaults, beside pooled logistic regression.

Two published tables of scikit-learn are dealt to six sites each: patients are ordered by one column with as
much noise, and cut into equal parts, so that sites differ. A third table is drawn by scikit-learn with eight
sites and several clusters per class. Everything is the default of `fedilc study` but the number of seeds.
What is done is not done again: interrupt and repeat the command.

    python -m benchmarks.unseen_tables --out results/unseen-tables
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.datasets import load_breast_cancer, load_diabetes, make_classification

from fedilc.seeds import numpy_generator
from fedilc.studies.study.comparators import CHOSEN
from fedilc.studies.study.data import study_data
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.run import run_study
from fedilc.studies.study.settings import usual_settings

POOLED, SCORES = "pooled logistic", ("auroc", "log_loss")


def tables() -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield each table with the columns `site` and `y`."""
    cancer = load_breast_cancer()
    yield "breast cancer, by texture", dealt(cancer.data, 1 - cancer.target, cancer.data[:, 1], 6)
    diabetes = load_diabetes(scaled=False)
    yield "diabetes above 140, by age", dealt(diabetes.data, diabetes.target > 140, diabetes.data[:, 0], 6)
    clusters = {"n_informative": 6, "n_redundant": 3, "n_clusters_per_class": 3, "class_sep": 0.7}
    x, y = make_classification(1600, 15, **clusters, flip_y=0.1, weights=[0.7], random_state=3)
    yield "clusters, by a column", dealt(x, y, x[:, 4], 8)


def dealt(x: Any, y: Any, by: Any, sites: int) -> pl.DataFrame:
    """Return a table whose rows are dealt to sites by a column with noise of the same deviation."""
    random = numpy_generator(0, "unseen-tables", sites, len(y))
    order = np.argsort(by + random.normal(size=len(y)) * np.std(by))
    site = np.empty(len(y), int)
    site[order] = np.arange(len(y)) * sites // len(y)
    columns = {f"x{place}": column for place, column in enumerate(x.T)}
    return pl.DataFrame({"site": [f"s{number}" for number in site], "y": y.astype(int), **columns})


def row_of(name: str, result: StudyResult) -> str:
    """Return a row of the table: scores, differences with their intervals over sites, methods taken."""
    cells = []
    for score in SCORES:
        ours, theirs = (result.mean(method, score).value for method in (CHOSEN, POOLED))
        found = result.against(POOLED, score)
        apart = (
            "-"
            if found is None
            else "{value:+.3f} ({low:+.3f} to {high:+.3f})".format(**vars(found.over_sites))
        )
        cells += [f"{ours:.3f}", f"{theirs:.3f}", apart]
    taken = Counter(result.chosen.values())
    return f"| {name} | {' | '.join(cells)} | {', '.join(f'{m} {n}' for m, n in taken.most_common())} |"


def main() -> None:
    """Study every table, print the comparison, and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unseen_tables", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/unseen-tables"))
    parser.add_argument("--runs", type=Path, default=Path("runs/unseen-tables"), help="where runs are kept")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    lines = [
        f"`fedilc study`, all defaults, seeds: {arguments.seeds}; chosen is its procedure. Differences from "
        "logistic regression of the pooled data with 95 % intervals over sites.",
        "",
        "| table | AUROC, chosen | pooled | difference | log loss, chosen | pooled | difference | taken |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for place, (name, frame) in enumerate(tables()):
        file = arguments.runs / f"table-{place}.csv"
        frame.write_csv(file)
        data = study_data([str(file)], silo_column="site", label="y")
        given = {"seeds": arguments.seeds}
        plan = StudyPlan(data, usual_settings(data, given).with_given(given))
        result = run_study(plan, arguments.runs / f"study-{place}", jobs=arguments.jobs)
        lines.append(row_of(name, result))
        print(lines[-1], flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
