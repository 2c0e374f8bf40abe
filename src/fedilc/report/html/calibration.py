"""Calibration plots of a study: what was observed among examples that were predicted alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import expit, softmax
from scipy.stats import binomtest

from fedilc.algorithms.loss_name import has_classes, task_of
from fedilc.report.html.charts import Chart, Line, reliability
from fedilc.report.study_files import PREDICTIONS
from fedilc.report.study_tables import Study

_MAX_SITES = 24
_MAX_BINS, _MIN_PER_BIN = 8, 15
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """A chart per held-out site.

    Attributes:
        charts: what was observed against what was predicted.
        axes: the names of prediction and observation.
        methods: those that are drawn, with their colours.
        more: how many sites are not drawn.
    """

    charts: list[Chart]
    axes: tuple[str, str]
    methods: dict[str, int]
    more: int


def calibration_charts(folder: Path, study: Study) -> Calibration | None:
    """Return the plots of the reference and the best method; None if the predictions are not there."""
    if not (folder / PREDICTIONS).exists():
        return None
    frame = pl.read_parquet(folder / PREDICTIONS, glob=False)
    shown = _shown(study)
    sites = study["held_out"][:_MAX_SITES]
    loss = study["loss"]
    points = {
        (site, method): _predicted(frame.filter(site=site, method=method), loss)
        for site in sites
        for method in shown
    }
    axes = {
        "binary": ("predicted probability", "observed share"),
        "multiclass": ("confidence", "share of correct predictions"),
    }.get(task_of(loss), ("predicted value", "observed mean"))
    ends = (0.0, 1.0) if has_classes(loss) else _ends(list(points.values()))
    charts = [
        reliability(
            site,
            [
                binned(method, colour, *points[site, method], study["settings"]["seeds"])
                for method, colour in shown.items()
            ],
            axes,
            ends,
        )
        for site in sites
    ]
    return Calibration(charts, axes, shown, len(study["held_out"]) - len(sites))


def _shown(study: Study) -> dict[str, int]:
    """Return the reference and the algorithm with the best mean, with their colours."""
    metric = study["deciding_metric"]
    sign = 1 if metric in study["higher_is_better"] else -1
    means = {name: study["means"][name][metric]["value"] for name in study["settings"]["algorithms"]}
    known = {name: sign * value for name, value in means.items() if value is not None}
    best = max(known, key=known.__getitem__, default=study["reference"])
    return {name: study["methods"].index(name) for name in dict.fromkeys((study["reference"], best))}


def _predicted(frame: pl.DataFrame, loss: str) -> tuple[Floats, Floats]:
    """Return predictions and outcomes of all seeds: probabilities and 0 or 1, or values."""
    labels = frame["label"].to_numpy()
    outputs = frame.select(pl.col("^output.*$")).to_numpy()
    if task_of(loss) == "binary":
        return expit(outputs[:, 0]), labels
    if task_of(loss) == "multiclass":
        shares = softmax(outputs, axis=1)
        return shares.max(1), (shares.argmax(1) == labels).astype(float)
    return outputs[:, 0], labels


def binned(label: str, colour: int, predicted: Floats, observed: Floats, seeds: int) -> Line:
    """Return means of groups of examples that are predicted alike, with intervals of the observed mean."""
    order = np.argsort(predicted, kind="stable")
    count = int(np.clip(len(order) // seeds // _MIN_PER_BIN, 1, _MAX_BINS))
    groups = [group for group in np.array_split(order, count) if len(group)]
    limits = [_limits(observed[group], seeds) for group in groups]
    return Line(
        label,
        colour,
        [float(predicted[group].mean()) for group in groups],
        [float(observed[group].mean()) for group in groups],
        [low for low, _ in limits],
        [high for _, high in limits],
    )


def _limits(values: Floats, seeds: int) -> tuple[float, float]:
    """Return the 95 % limits of a mean; an example that every seed predicted counts once."""
    examples = max(1, round(len(values) / seeds))
    mean = float(values.mean())
    if np.isin(values, (0.0, 1.0)).all():
        return wilson_limits(mean, examples)
    half = 1.96 * float(values.std()) / np.sqrt(examples)
    return mean - half, mean + half


def wilson_limits(share: float, examples: int) -> tuple[float, float]:
    """Return Wilson's 95 % limits of a share of examples; a mean over seeds lies between them too."""
    found = binomtest(round(share * examples), examples).proportion_ci(method="wilson")
    return min(share, float(found.low)), max(share, float(found.high))


def _ends(points: list[tuple[Floats, Floats]]) -> tuple[float, float]:
    middle = [np.quantile(part, (0.02, 0.98)) for pair in points for part in pair if len(part)]
    return float(np.min(middle)), float(np.max(middle))
