"""Models of a hospital's own data beside those of the others: `fedilc study`, and logistic regression.

The study's folder has what its methods predict at each hospital: models of the other three, and with the name
"site alone" a network of the hospital's own examples, cross-validated in five folds. This adds scikit-learn's
logistic regression of the hospital's own examples, in the same number of folds; its penalty is chosen inside
each training part. Differences have an interval over hospitals, corrected as in the study.

    fedilc study && python -m benchmarks.own_models results/heart-disease-study
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold

from fedilc.evaluation.metrics import scores
from fedilc.evaluation.significance import mean_difference
from fedilc.studies.study.data import study_data

METRICS = {"auroc": "AUROC", "log_loss": "log loss", "brier": "Brier score", "accuracy": "accuracy"}
ALONE, LOGISTIC = "site alone", "logistic regression alone"
By = dict[str, dict[str, dict[str, float]]]


def logistic_scores(name: str = "heart-disease", seed: int = 0) -> dict[str, dict[str, float]]:
    """Return the cross-validated scores of each site's own logistic regression."""
    data, found = study_data([name]), {}
    for silo in data.silos:
        y = np.asarray(data.labels[silo]).astype(int)
        logits = np.empty(len(y))
        for training, held in StratifiedKFold(5, shuffle=True, random_state=seed).split(y, y):
            x = data.inputs_by_rows(silo, training).numpy()
            model = LogisticRegressionCV(
                cv=5, max_iter=5000, scoring="neg_log_loss", l1_ratios=(0,), use_legacy_attributes=False
            ).fit(x[training], y[training])
            logits[held] = model.decision_function(x[held])
        found[silo] = {key: float(value[0]) for key, value in scores("binary", y, logits).items()}
    return found


def by_method(study: Mapping[str, Any], logistic: Mapping[str, Mapping[str, float]]) -> By:
    """Return the scores by metric, method and site; sites at which a score is not estimable are left out."""
    found: By = {metric: {} for metric in METRICS}
    for metric, methods in found.items():
        for site, cells in study["sites"].items():
            known = {name: cell[metric]["value"] for name, cell in cells.items()}
            if known[ALONE] is None:
                continue
            for name, value in (known | {LOGISTIC: logistic[site][metric]}).items():
                methods.setdefault(name, {})[site] = value
    return found


def table(scores_: By, method: str, training: int) -> list[str]:
    """Return the means over sites as Markdown, and how the method differs from the sites' own models.

    `training` is the number of sites that a model of the method was trained on.
    """
    lines = [
        f"| mean over sites | {method} | {ALONE} | {LOGISTIC} | better than alone | than logistic |",
        f"|{'---|' * 6}",
    ]
    for metric, title in METRICS.items():
        rows = {name: np.array([*scores_[metric][name].values()]) for name in (method, ALONE, LOGISTIC)}
        sign = 1 if metric in ("auroc", "accuracy") else -1
        cells = [f"{values.mean():.3f}" for values in rows.values()]
        for other in (ALONE, LOGISTIC):
            gain = sign * (rows[method] - rows[other])
            cells.append(f"{(gain > 0).sum()} of {len(gain)}, {mean_difference(gain, training)[0]}")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print the table for a folder of `fedilc study`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_models", description=__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("--method", default="fishr-inter-geo", help="that is compared with sites' own models")
    given = parser.parse_args()
    study = json.loads((given.study / "study.json").read_text())
    found = by_method(study, logistic_scores(study["name"]))
    print("\n".join(table(found, given.method, len(study["silos"]) - 1)))
    for metric, methods in found.items():
        for name in (given.method, ALONE, LOGISTIC):
            print(f"{METRICS[metric]}, {name}: {', '.join(f'{s} {v:.3f}' for s, v in methods[name].items())}")


if __name__ == "__main__":
    main()
