"""Score the methods of a study at one held-out site, from that site's rows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedilc.algorithms.loss_registry import LossName, has_classes, task_of
from fedilc.evaluation.estimates import NO_FLOORS, Estimates, Floors, estimates, support
from fedilc.evaluation.intervals import Interval, interval_of
from fedilc.progress import counted
from fedilc.studies.study.comparators import NULL
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.site_scores import Limits, MethodScores, Score, SiteScores, variances_apart

OE_RATIO = "oe_ratio"
Outputs = Mapping[str, Sequence[NDArray[Any]]]  # by method, one array of outputs per seed


@dataclass(frozen=True)
class Asked:
    """What a study asks of each held-out site.

    Attributes:
        loss: of the data.
        outputs: how many outputs a model has.
        metrics: the names of the scores.
        seeds: how many.
        thresholds: risks at which the net benefit of binary predictions is given.
        subgroups: as the plan has them.
    """

    loss: LossName
    outputs: int
    metrics: tuple[str, ...]
    seeds: int
    thresholds: tuple[float, ...]
    subgroups: tuple[str, ...] = ()

    @property
    def scores(self) -> tuple[str, ...]:
        """Return the names of all scores: of binary labels, observed to expected events too."""
        return (*self.metrics, *([OE_RATIO] if task_of(self.loss) == "binary" else []))


@dataclass(frozen=True)
class SiteRows:
    """What a site has: it stays there.

    Attributes:
        site: its name.
        y: one label per example.
        outputs: by method, the outputs of its models for these examples, per seed.
        patients: whose each example is, by number; None if every example is a patient of its own.
        models: by method, which of its models predicts each example, of methods that have several here.
        subgroups: by subgroup, the level of each example.
        beside: by name, a method of `outputs` and the outputs that it has in another study of these examples.
        drawn: the methods of which curves and risks are given too.
    """

    site: str
    y: NDArray[Any]
    outputs: Outputs
    patients: NDArray[np.intp] | None = None
    models: Mapping[str, NDArray[np.intp]] = field(default_factory=dict)
    subgroups: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    beside: Mapping[str, tuple[str, Sequence[NDArray[Any]]]] = field(default_factory=dict)
    drawn: tuple[str, ...] = ()


def asked_by(plan: StudyPlan) -> Asked:
    """Return what a study asks of each held-out site."""
    data, settings = plan.data, plan.settings
    return Asked(
        data.loss, data.outputs, plan.metrics, settings.seeds, settings.thresholds, settings.subgroups
    )


def rows_of(plan: StudyPlan, site: str, outputs: Outputs) -> SiteRows:
    """Return what a site has, if its rows are among the study's data."""
    data = plan.data
    models = {method: plan.models_at([site], method) for method in outputs}
    several = {method: numbers for method, numbers in models.items() if numbers is not None}
    return SiteRows(site, data.labels[site], outputs, data.patients.get(site), several)


def score_site(rows: SiteRows, asked: Asked, floors: Floors = NO_FLOORS) -> SiteScores:
    """Return the document on a site, which has nothing that the floors forbid."""
    methods: dict[str, dict[str, Score]] = {method: {} for method in rows.outputs}
    beside: dict[str, dict[str, float | None]] = {name: {} for name in rows.beside}
    apart = {}
    for metric in counted(f"scores at {rows.site}", asked.scores):
        influences = {}
        for method, outputs in rows.outputs.items():
            methods[method][metric], influences[method] = _score(rows, asked, floors, method, metric, outputs)
        apart[metric] = variances_apart([*influences.values()])
        for name, (method, outputs) in rows.beside.items():
            other = _score(rows, asked, floors, method, metric, outputs)[1]
            beside[name][metric] = variances_apart([other, influences[method]])[1][0]
    reasons = {
        metric: support(asked.loss, rows.y, metric, rows.patients, floors=floors).reason
        for metric in asked.scores
    }
    return SiteScores(
        site=rows.site,
        min_events=floors.min_events,
        min_cell=floors.min_cell,
        examples=len(rows.y),
        patients=None if rows.patients is None else len(np.unique(rows.patients)),
        classes=class_counts(rows.y, floors) if has_classes(asked.loss) else None,
        reasons=reasons,
        methods={method: MethodScores(scores=scores) for method, scores in methods.items()},
        apart=apart,
        beside=beside,
    )


def _score(
    rows: SiteRows, asked: Asked, floors: Floors, method: str, metric: str, outputs: Sequence[NDArray[Any]]
) -> tuple[Score, NDArray[np.float64] | None]:
    """Return a method's score, and the influences that differences from it are computed with."""
    models = rows.models.get(method)
    found = estimates(asked.loss, metric, rows.y, outputs, rows.patients, models, floors)
    if found.own is None:
        seeds = (None,) * len(found.seeds)
        return Score(found=Limits.of(_interval(found, metric, len(rows.y))), seeds=seeds), None
    comparable = found.limits.reason is None
    if (method, metric) == (NULL, "auroc"):  # a constant has this area in every sample
        found = replace(found, own=replace(found.own, influence=np.zeros(1)), analysis=None)
    own, analysis = found.own, found.analysis
    assert own is not None
    return (
        Score(
            found=Limits.of(_interval(found, metric, len(rows.y))),
            seeds=tuple(found.seeds),
            variance=own.variance,
            between_seeds=own.between_seeds,
            analysis=None if analysis is None else (analysis.value, analysis.variance),
            comparable=comparable,
        ),
        own.influence,
    )


def _interval(found: Estimates, metric: str, rows: int) -> Interval:
    return interval_of(metric, found, rows)


def class_counts(y: NDArray[Any], floors: Floors = NO_FLOORS) -> dict[str, int | None]:
    """Return the rows of each class; None if a count is below the floor, or would tell such a one.

    All rows are known, so that the counts that are not told must be enough together.

    >>> class_counts(np.array([0] * 20 + [1] * 3)), class_counts(np.array([0] * 20 + [1] * 3), Floors(10, 5))
    ({'0': 20, '1': 3}, {'0': None, '1': None})
    """
    values, counts = np.unique(y, return_counts=True)
    told = {str(int(value)): int(count) for value, count in zip(values, counts, strict=True)}
    hidden = [name for name, count in told.items() if count < floors.min_cell]
    if hidden:
        rest = sorted((name for name in told if name not in hidden), key=told.__getitem__)
        while rest and (len(hidden) < 2 or sum(told[name] for name in hidden) < floors.min_cell):
            hidden.append(rest.pop(0))
    return {name: None if name in hidden else count for name, count in told.items()}
