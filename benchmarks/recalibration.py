"""How many local patients it takes to recalibrate a model at the next hospital: heart disease.

Logistic regression by Newton's method is trained on three hospitals, with the ridge below, which nothing was
tuned for, and recalibrated at the fourth, each in turn. Per hospital, 50, 100 and 200 of its patients are
drawn 500 times (as many as leave 50 others), and both models are scored on the patients that were not drawn.

    python -m benchmarks.recalibration --out results/recalibration       # about half a minute
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from fedilc import load, train
from fedilc.data.download import data_folder
from fedilc.data.embedded_data import heart_disease
from fedilc.evaluation.learning_curve import CurvePoint, learning_curve
from fedilc.evaluation.recalibration import KINDS
from fedilc.models import build_model

RIDGE, DRAWS = 0.01, 500
SCORES = ("calibration_intercept", "calibration_slope", "oe_ratio", "log_loss", "brier")
COLUMNS = ("hospital", "fitted", "local patients", "refitted", "model", *SCORES, "lower log loss")
Row = Mapping[str, object]


def rows_of(hospital: str, point: CurvePoint, kind: str) -> Iterator[Row]:
    """Yield the rows of one number of local patients: the model as it is, and recalibrated."""
    shared = {"hospital": hospital, "fitted": kind, "local patients": point.patients}
    for name, found in (("as it is", point.before), ("recalibrated", point.after)):
        now = name == "recalibrated"
        yield {
            **shared,
            "refitted": f"{point.refitted / point.draws:.0%}" if now else "-",
            "model": name,
            **{score: str(found[score]) for score in SCORES},
            "lower log loss": f"{point.lower:.0%}" if now else "-",
        }


def measured() -> Iterator[Row]:
    """Yield the rows of every hospital and kind of recalibration."""
    tables = heart_disease(data_folder() / "heart-disease")
    for hospital in tables.silos:
        federation = tables.federation("heart-disease", test=hospital, seed=0, validation=0.0)
        model = build_model("linear", federation.inputs, 1, 0)
        with TemporaryDirectory() as folder:
            out, options = Path(folder) / "run", {"rounds": 20, "learning_rate": 1.0, "weight_decay": RIDGE}
            named = {"model": {"name": "linear"}}
            train(federation, model, "logistic", **options, out=out, settings=named)
            loaded = load(out, "last")
            logits = loaded.logits(federation.x_test)
        for kind in KINDS:
            for point in learning_curve("binary", kind, federation.y_test, logits, draws=DRAWS):
                yield from rows_of(hospital, point, kind)


def table(found: list[Row]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(name.replace("_", " ") for name in COLUMNS) + " |"]
    lines.append("|---|---|--:|--:|---|" + "--:|" * (len(SCORES) + 1))
    lines += [f"| {' | '.join(str(row[name]) for name in COLUMNS)} |" for row in found]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train, recalibrate, print the table, and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recalibration", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/recalibration"))
    arguments = parser.parse_args()
    found = list(measured())
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "heart-disease.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(found)
    text = (
        f"Mean (standard deviation) over {DRAWS} draws of local patients, on those that were not drawn. "
        '"Refitted" is the share\nof draws with at least 10 events and 10 non-events; in the others the '
        'model stays as it is. "Lower log loss" is the share\nof draws in which recalibration lowers it.\n\n'
        + table(found)
    )
    (arguments.out / "heart-disease.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
