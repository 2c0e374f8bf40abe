"""How often the interval of a score at one small site holds the score of the population, in simulations.

A model's logit is normal, and the outcome depends on it with slope 0.8, so that the model is too sure. Sites
have 20, 50 or 200 patients, and 5 % or 30 % of the rows have the event. A patient has one row, or four whose
logits and outcomes are alike. Three intervals are compared: that of `fedilc`; for patients with four rows,
the same if every row is taken for a patient; and percentiles of a bootstrap of rows, if it has any.

A score is not estimable with fewer than 10 events or non-events, or 10 patients with them: "given" is the
share of samples that have an interval, and coverage is over these samples. If only samples with unusually
many events have one, scores that depend on how common events are cover less often than 95 %.

    python -m benchmarks.small_sites --out results/coverage       # about five minutes of one core
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from fedilc.evaluation.intervals import Interval, score_intervals
from fedilc.evaluation.metrics import SCORES, scores
from fedilc.seeds import numpy_generator

PATIENTS, EVENTS, ROWS_EACH = (20, 50, 200), (0.05, 0.3), (1, 4)
POPULATION, RESAMPLES = 400_000, 200
BOOTSTRAPPED = 5  # one in so many samples, because a bootstrap costs a hundred times as much
COLUMNS = {
    "patients": "patients",
    "rows each": "rows each",
    "events": "events",
    "score": "score",
    "given": "given",
    "fedilc": "coverage",
    "rows": "rows as patients",
    "bootstrap": "bootstrap of rows",
}
Row = Mapping[str, object]
Floats = NDArray[np.float64]
Sample = tuple[Floats, Floats, NDArray[np.intp]]


def sample(generator: np.random.Generator, patients: int, each: int, intercept: float) -> Sample:
    """Return outcomes, logits and patients of the rows of a site, with `each` rows per patient."""
    who = np.repeat(np.arange(patients), each)
    own, shared = generator.normal(size=(2, patients))[:, who] if each > 1 else np.zeros((2, patients))
    share = 0.7 if each > 1 else 0.0
    spread = 1.2 * (np.sqrt(share) * own + np.sqrt(1 - share) * generator.normal(size=len(who)))
    risk = expit(intercept + 0.8 * spread + 0.8 * shared)
    y = (generator.random(len(who)) < risk).astype(float)
    return y, intercept - 0.3 + spread, who


def intercept_of(events: float, each: int) -> float:
    """Return the intercept with which this share of rows has the event."""
    normal = numpy_generator(0, "small sites", "intercept").normal(size=(2, POPULATION))
    spread = 0.8 * (1.2 * normal[0] + (normal[1] if each > 1 else 0.0))
    return float(brentq(lambda a: expit(a + spread).mean() - events, -10, 10))


def bootstrap(y: Floats, logits: Floats, seed: int) -> dict[str, Interval]:
    """Return the scores with percentiles of a bootstrap of rows."""
    drawn = numpy_generator(seed, "small sites", "bootstrap").integers(0, len(y), (RESAMPLES, len(y)))
    counts = np.stack([np.bincount(one, minlength=len(y)) for one in drawn]).astype(float)
    whole, parts = scores("binary", y, logits), scores("binary", y, logits, counts)
    found = {}
    for name, (value,) in whole.items():
        defined = parts[name][np.isfinite(parts[name])]
        low, high = np.percentile(defined, [2.5, 97.5]) if len(defined) else (None, None)
        found[name] = Interval(value, low, high)
    return found


def rows_of(patients: int, each: int, events: float, repetitions: int) -> Iterator[Row]:
    """Yield the coverage of each score's intervals at one kind of site."""
    intercept = intercept_of(events, each)
    population = sample(numpy_generator(0, "small sites"), POPULATION // each, each, intercept)
    truth = scores("binary", *population[:2])
    held: dict[str, dict[str, list[bool]]] = {
        name: {"fedilc": [], "rows": [], "bootstrap": []} for name in SCORES["binary"]
    }
    for repetition in range(repetitions):
        generator = numpy_generator(repetition, "small sites", f"{patients} {each} {events}")
        y, logits, who = sample(generator, patients, each, intercept)
        ways = {"fedilc": score_intervals("binary", y, logits, who if each > 1 else None)}
        if each > 1:
            ways["rows"] = score_intervals("binary", y, logits)
        if repetition % BOOTSTRAPPED == 0:
            ways["bootstrap"] = bootstrap(y, logits, repetition)
        for way, found in ways.items():
            for name, one in found.items():
                if one.low is not None and one.high is not None:
                    held[name][way].append(bool(one.low <= truth[name][0] <= one.high))
    for name, inside in held.items():
        yield {
            "patients": patients,
            "rows each": each,
            "events": events,
            "score": name,
            "given": round(len(inside["fedilc"]) / repetitions, 3),
            **{way: round(float(np.mean(found)), 3) if found else "" for way, found in inside.items()},
        }


def table(found: list[Row]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(COLUMNS.values())} |", "|--:|--:|--:|---|--:|--:|--:|--:|"]
    for row in found:
        cells = [str(row[column]).replace("_", " ") or "-" for column in COLUMNS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulate every kind of site, print the table, and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_sites", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("results/coverage"))
    arguments = parser.parse_args()
    kinds = product(ROWS_EACH, EVENTS, PATIENTS)
    found = [
        row
        for each, events, patients in kinds
        for row in rows_of(patients, each, events, arguments.repetitions)
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "small-sites.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(found)
    text = (
        "Share of 95 % intervals that hold the score of the population, at one site with few patients. "
        '"Given" is the share\nof samples in which the score is estimable; coverage is over these.\n\n'
        + table(found)
    )
    (arguments.out / "small-sites.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
