"""Charts of what a study's methods predict at held-out sites: calibration, risks, and decision curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import expit, softmax

from fedilc.algorithms.loss_registry import has_classes, task_of
from fedilc.evaluation.calibration_curve import calibration_curve
from fedilc.evaluation.decision_curve import net_benefit, treat_all
from fedilc.evaluation.estimates import support
from fedilc.report.html.charts import Chart, Line, reliability, wilson_limits
from fedilc.report.score_tables import Study, headline
from fedilc.report.study_files import PREDICTIONS
from fedilc.studies.study.assessment import ALL_SITES

_MAX_SITES = 24
_MAX_BINS, _MIN_PER_BIN = 8, 15
_RISK_BINS = 20
_GREY = 7  # the colour of what is no method
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Predicted:
    """What one method predicts at one site: labels, outputs by seed, and whose each row is."""

    y: Floats
    outputs: list[Floats]
    patients: NDArray[np.int64] | None

    @property
    def risks(self) -> Floats:
        """Return the predicted risks of all seeds, one seed after another."""
        found: Floats = expit(np.concatenate([one[:, 0] for one in self.outputs]))
        return found


@dataclass(frozen=True)
class Calibration:
    """A chart per held-out site.

    Attributes:
        charts: what was observed against what was predicted.
        axes: the names of prediction and observation.
        methods: those that are drawn, with their colours.
        more: how many sites are not drawn.
        smooth: whether the lines are smooth curves with bands, and dots are groups.
        missing: sites without a curve, and why.
    """

    charts: list[Chart]
    axes: tuple[str, str]
    methods: dict[str, int]
    more: int
    smooth: bool = False
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Histogram(Chart):
    """Shares of examples by predicted risk: events upwards, non-events downwards."""

    bars: Sequence[tuple[float, float, float, float]] = ()


@dataclass(frozen=True)
class PredictionCharts:
    """All charts that need predictions; risks and decisions are of binary labels alone."""

    calibration: Calibration
    risks: list[Histogram]
    decisions: list[Chart]
    method: str


def prediction_charts(folder: Path, study: Study) -> PredictionCharts | None:
    """Return the charts of the headline and the reference; None if the predictions are not there."""
    if not (folder / PREDICTIONS).exists():
        return None
    frame = pl.read_parquet(folder / PREDICTIONS, glob=False)
    shown, sites = _shown(study), study["held_out"][:_MAX_SITES]
    found = {
        (site, method): _predicted(frame.filter(site=site, method=method))
        for site in study["held_out"]
        for method in shown
    }
    if task_of(study["loss"]) != "binary":
        return PredictionCharts(_grouped(study, sites, shown, found), [], [], headline(study))
    if len(study["held_out"]) > 1:
        for method in shown:
            parts = [found[site, method] for site in study["held_out"]]
            outputs = zip(*(part.outputs for part in parts), strict=True)
            together = [np.concatenate(one) for one in outputs]
            whose = [part.patients for part in parts if part.patients is not None]
            found[ALL_SITES, method] = Predicted(
                np.concatenate([part.y for part in parts]), together, np.concatenate(whose) if whose else None
            )
        sites = [ALL_SITES, *sites]
    more = max(0, len(study["held_out"]) - _MAX_SITES)
    return PredictionCharts(
        _smooth(sites, shown, found, more),
        [_risks(site, found[site, headline(study)]) for site in sites],
        [_decisions(site, shown, found) for site in sites],
        headline(study),
    )


def _shown(study: Study) -> dict[str, int]:
    """Return the method that answers the question and the reference, with their colours."""
    names = dict.fromkeys((headline(study), study["reference"]))
    return {name: study["methods"].index(name) for name in names}


def _predicted(frame: pl.DataFrame) -> Predicted:
    """Return labels and outputs of one site and method, examples in their order."""
    seeds = [part.sort("row") for _, part in sorted(frame.partition_by("seed", as_dict=True).items())]
    outputs = [part.select(pl.col("^output.*$")).to_numpy(writable=True) for part in seeds]
    patients = seeds[0]["patient"].to_numpy() if "patient" in frame.columns else None
    return Predicted(seeds[0]["label"].to_numpy(writable=True), outputs, patients)


def _smooth(
    sites: Sequence[str],
    shown: Mapping[str, int],
    found: Mapping[tuple[str, str], Predicted],
    more: int,
) -> Calibration:
    """Return smooth curves with bands, and groups of examples as dots; none at a site with few events."""
    charts, missing = [], []
    axes = ("predicted probability", "observed share")
    for site in sites:
        first = found[site, next(iter(shown))]
        reason = support("binary", first.y, "calibration_slope", first.patients).reason
        if reason is not None:
            missing.append(f"{site} ({reason})")
            continue
        lines, dots, said = [], [], []
        for method, colour in shown.items():
            one = found[site, method]
            seeds = len(one.outputs)
            dots.append(binned(method, colour, one.risks, np.tile(one.y, seeds), seeds))
            curve = calibration_curve(one.y, one.outputs, one.patients)
            if curve is None:
                missing.append(f"{site}, {method} (no finite fit)")
                continue
            parts = (curve.predicted, curve.observed, curve.low, curve.high)
            lines.append(Line(method, colour, *(part.tolist() for part in parts)))
            said.append(f"{method} {curve.ici:.3f}")
        alt = (
            f"{site}: {axes[1]} against {axes[0]}. Integrated calibration index: {', '.join(said) or 'none'}."
        )
        charts.append(Chart(site, alt, axes[0], lines, (0.0, 1.0), (0.0, 1.0), 280, 270, dots=dots))
    return Calibration(charts, axes, dict(shown), more, smooth=True, missing=tuple(missing))


def _risks(site: str, found: Predicted) -> Histogram:
    """Return the distribution of the predicted risks of events and of non-events."""
    risks, y = found.risks, np.tile(found.y, len(found.outputs))
    edges = np.linspace(0, 1, _RISK_BINS + 1)
    up, down = (np.histogram(risks[y == label], edges)[0] / len(y) for label in (1, 0))
    said = []
    for name, label in (("events", 1), ("non-events", 0)):
        if (y == label).any():
            low, middle, high = np.quantile(risks[y == label], (0.25, 0.5, 0.75))
            said.append(f"{name} median {middle:.2f} (quartiles {low:.2f} and {high:.2f})")
    alt = f"{site}: predicted risks, {', '.join(said)}."
    bars = list(zip(edges[:-1].tolist(), edges[1:].tolist(), up.tolist(), down.tolist(), strict=True))
    top, bottom = max(up.max(), 0.01), max(down.max(), 0.01)
    ends = (-1.05 * bottom, 1.05 * top)
    return Histogram(site, alt, "predicted risk", [], (0.0, 1.0), ends, 280, 212, bars=bars)


def _decisions(site: str, shown: Mapping[str, int], found: Mapping[tuple[str, str], Predicted]) -> Chart:
    """Return net benefit against the threshold: the methods, treating everybody, and treating nobody."""
    every = np.concatenate([found[site, method].risks for method in shown])
    last = float(np.clip(np.ceil(100 * np.quantile(every, 0.99)) / 100, 0.1, 0.99))
    thresholds = np.arange(0.01, last + 0.005, 0.01).tolist()
    y, patients = found[site, next(iter(shown))].y, found[site, next(iter(shown))].patients
    benefits = {method: net_benefit(y, found[site, method].outputs, thresholds, patients) for method in shown}
    everyone = [one.value or 0.0 for one in treat_all(y, thresholds)]
    highest = max([0.01, everyone[0], *(one.value or 0.0 for of in benefits.values() for one in of)])
    lowest = -0.15 * highest
    lines = []
    for method, colour in shown.items():
        of = benefits[method]
        limits = [[one.low for one in of], [one.high for one in of]]
        bounds = [[max(end, lowest) for end in ends if end is not None] for ends in limits]
        values = [max(one.value or 0.0, lowest) for one in of]
        lines.append(Line(method, colour, thresholds, values, *(bounds if all(bounds) else (None, None))))
    kept = [(at, value) for at, value in zip(thresholds, everyone, strict=True) if value >= lowest]
    lines.append(Line("treat all", _GREY, [at for at, _ in kept], [value for _, value in kept]))
    middle = thresholds[len(thresholds) // 2]
    said = ", ".join(f"{method} {of[len(of) // 2].value:.3f}" for method, of in benefits.items())
    alt = (
        f"{site}: net benefit against the threshold. At {middle:.2f}: {said}, "
        f"treat all {everyone[len(everyone) // 2]:.3f}, treat none 0."
    )
    top = max([highest, *(end for line in lines for end in line.high or ())])
    return Chart(site, alt, "threshold", lines, (0.0, last), (lowest, 1.02 * top))


def _grouped(
    study: Study,
    sites: Sequence[str],
    shown: Mapping[str, int],
    found: Mapping[tuple[str, str], Predicted],
) -> Calibration:
    """Return the groups of examples with several classes or quantities that were predicted alike."""
    loss = study["loss"]
    points = {(site, method): _pairs(found[site, method], loss) for site in sites for method in shown}
    axes = {"multiclass": ("confidence", "share of correct predictions")}.get(
        task_of(loss), ("predicted value", "observed mean")
    )
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
    return Calibration(charts, axes, dict(shown), len(study["held_out"]) - len(sites))


def _pairs(found: Predicted, loss: str) -> tuple[Floats, Floats]:
    """Return predictions and outcomes of all seeds: confidences and 0 or 1, or values."""
    outputs, labels = np.concatenate(found.outputs), np.tile(found.y, len(found.outputs))
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


def _ends(points: list[tuple[Floats, Floats]]) -> tuple[float, float]:
    middle = [np.quantile(part, (0.02, 0.98)) for pair in points for part in pair if len(part)]
    return float(np.min(middle)), float(np.max(middle))
