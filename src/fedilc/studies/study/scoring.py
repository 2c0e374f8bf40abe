"""Score the methods of a study at one held-out site, from that site's rows alone."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from fedilc.algorithms.loss_registry import LossName, Task, has_classes, task_of
from fedilc.errors import DataError
from fedilc.evaluation.calibration import sigmoid
from fedilc.evaluation.calibration_curve import calibration_curve
from fedilc.evaluation.decision_curve import net_benefit, treat_all
from fedilc.evaluation.estimates import NO_FLOORS, Floors, estimates, support
from fedilc.evaluation.intervals import Interval, interval_of
from fedilc.evaluation.metrics import SCORES
from fedilc.evaluation.risk_counts import GRID, RiskCounts, risk_counts, share_of_patient
from fedilc.progress import counted
from fedilc.studies.study.comparators import NULL
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.site_scores import (
    Curve,
    Group,
    Limits,
    MethodScores,
    Risks,
    Score,
    SiteDescription,
    SiteScores,
    Subgroup,
    variances_apart,
)
from fedilc.studies.study.subgroups import subgroup_levels, told_levels

OE_RATIO = "oe_ratio"
SAME = "no finite fit: predictions are all equal, or part events from non-events"
_ADDED = ("log_loss", "brier", "accuracy", "calibration_intercept", "rmse", "mae")
_UNIT = ("auroc", "auprc", "accuracy", "brier")
_AT_ONCE, _MOST_LEVELS = 8, 25
_MOST_GROUPS, _LEAST_PER_GROUP = 8, 15
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
        alike: whether one model predicts all examples, except for methods that say otherwise; scores of
            subgroups that need the same model are left out if not.
    """

    loss: LossName
    outputs: int
    metrics: tuple[str, ...]
    seeds: int
    thresholds: tuple[float, ...]
    subgroups: tuple[str, ...] = ()
    alike: bool = True

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
        description: who is at the site, if that is asked.
        drawn: the methods of which curves and risks are given too.
    """

    site: str
    y: NDArray[Any]
    outputs: Outputs
    patients: NDArray[np.intp] | None = None
    models: Mapping[str, NDArray[np.intp]] = field(default_factory=dict)
    subgroups: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    beside: Mapping[str, tuple[str, Sequence[NDArray[Any]]]] = field(default_factory=dict)
    description: SiteDescription | None = None
    drawn: tuple[str, ...] = ()


def asked_by(plan: StudyPlan) -> Asked:
    """Return what a study asks of each held-out site."""
    data, settings = plan.data, plan.settings
    return Asked(
        data.loss, data.outputs, plan.metrics, settings.seeds, settings.thresholds, settings.subgroups
    )


def rows_of(
    plan: StudyPlan, sites: Sequence[str], outputs: Outputs, drawn: Sequence[str], name: str | None = None
) -> SiteRows:
    """Return what some sites have, one after another, if their rows are among the study's data."""
    data = plan.data
    models = {method: plan.models_at(sites, method) for method in outputs}
    levels = {text: subgroup_levels(data, text) for text in plan.settings.subgroups}
    return SiteRows(
        name or sites[0],
        np.concatenate([data.labels[site] for site in sites]),
        outputs,
        data.patients_of(sites),
        {method: numbers for method, numbers in models.items() if numbers is not None},
        {text: np.concatenate([of[site] for site in sites]) for text, of in levels.items()},
        drawn=tuple(dict.fromkeys(drawn)),
    )


def score_site(rows: SiteRows, asked: Asked, floors: Floors = NO_FLOORS) -> SiteScores:
    """Return the document on a site, which has nothing that the floors forbid.

    A score of a constant prediction tells how many examples have each class. So if a class has too few
    examples to be told of, there is no score at all.
    """
    methods: dict[str, dict[str, Score]] = {method: {} for method in rows.outputs}
    beside: dict[str, dict[str, float | None]] = {name: {} for name in rows.beside}
    classes = class_counts(rows.y, floors, rows.patients) if has_classes(asked.loss) else None
    few = too_few(floors) if classes is not None and None in classes.values() else None
    apart = {}
    for metric in counted(f"scores at {rows.site}", asked.scores):
        influences = {}
        for method, outputs in rows.outputs.items():
            methods[method][metric], influences[method] = _score(
                rows, asked, floors, method, metric, outputs, few
            )
        apart[metric] = variances_apart([*influences.values()])
        for name, (method, outputs) in rows.beside.items():
            other = _score(rows, asked, floors, method, metric, outputs, few)[1]
            beside[name][metric] = variances_apart([other, influences[method]])[1][0]
    about = {
        metric: support(asked.loss, rows.y, metric, rows.patients, floors=floors) for metric in asked.scores
    }
    binary = task_of(asked.loss) == "binary"
    return SiteScores(
        site=rows.site,
        min_events=floors.min_events,
        min_cell=floors.min_cell,
        examples=len(rows.y),
        patients=None if rows.patients is None else len(np.unique(rows.patients)),
        classes=classes,
        mean=float(np.mean(rows.y)) if classes is None else None,
        deviation=float(np.std(rows.y)) if classes is None else None,
        reasons={metric: one.reason or few for metric, one in about.items()},
        methods={
            method: MethodScores(scores=scores, **clinical_facts(rows, asked, floors, method, few))
            for method, scores in methods.items()
        },
        apart=apart,
        beside=beside,
        description=rows.description,
        treat_all=_treat_all(rows, asked, floors, few) if binary else (),
        subgroups=tuple(
            one
            for text, levels in _told_levels(rows, asked, floors, few).items()
            for one in _subgroups(rows, asked, floors, text, levels)
        ),
    )


def check_document(document: SiteScores, site: str, asked: Asked, methods: Container[str]) -> None:
    """Raise one sentence if a document that came from elsewhere cannot be the answer to what was asked.

    `methods` are those that may have a model at the site.
    """
    wrong = next(_contradictions(document, site, asked, methods), None)
    if wrong is not None:
        raise DataError(f"the scores of silo {site!r} are refused: {wrong}")


def _contradictions(document: SiteScores, site: str, asked: Asked, methods: Container[str]) -> Iterator[str]:
    if document.site != site:
        yield f"they are those of {document.site!r}"
    names, unit = list(document.methods), {name for name in asked.scores if name in _UNIT}
    unknown = [name for name in names if name not in methods]
    if unknown:
        yield f"they name the method {unknown[0]!r}, which was not asked for"
    if set(document.apart) != set(asked.scores) or set(document.reasons) != set(asked.scores):
        yield "they have other scores than those asked for"
    if any([len(row) for row in rows] != list(range(len(names))) for rows in document.apart.values()):
        yield "the differences are not those of its methods"
    known = [count for count in (document.classes or {}).values() if count is not None]
    if sum(known) > document.examples or (document.patients or 0) > document.examples:
        yield f"they count more than their {document.examples} examples"
    binary = len(asked.thresholds) if task_of(asked.loss) == "binary" else 0
    if len(document.treat_all) != binary:
        yield "the net benefit is not at the thresholds of the plan"
    allowed = {*GRID, *asked.thresholds}
    for name, method in document.methods.items():
        if set(method.scores) != set(asked.scores):
            yield f"{name} has other scores than those asked for"
        for metric, score in method.scores.items():
            limits = [
                end for end in (score.found.value, score.found.low, score.found.high) if end is not None
            ]
            if len(score.seeds) != asked.seeds:
                yield f"{name} has {len(score.seeds)} seeds, and {asked.seeds} were asked for"
            if metric in unit and not all(0 <= end <= 1 for end in limits):
                yield f"the {metric} of {name} is not between 0 and 1"
            if score.found.value is None and (score.analysis is not None or score.comparable):
                yield f"the {metric} of {name} is not estimable, and has an estimate"
        if len(method.net_benefit) != binary:
            yield f"the net benefit of {name} is not at the thresholds of the plan"
        risks = method.risks
        if risks is not None:
            sizes = {len(risks.events), len(risks.others), len(risks.predicted)}
            edges = list(risks.edges)
            if sizes != {len(edges) + 1} or edges != sorted(set(edges)) or not allowed.issuperset(edges):
                yield f"the counts of {name} are not between risks of the plan"
            elif sum(risks.events) + sum(risks.others) != asked.seeds * document.examples:
                yield f"the counts of {name} are not those of all examples"
            elif risks.reach is not None and len(risks.reach) != len(edges):
                yield f"the counts of {name} are not between risks of the plan"
        curve = method.curve
        if curve is not None and (
            len({len(curve.predicted), len(curve.observed), len(curve.low), len(curve.high)}) > 1
            or not allowed.issuperset(curve.predicted)
        ):
            yield f"the curve of {name} is not at the risks of the plan"
        if len(method.groups) > _MOST_GROUPS:
            yield f"{name} has too many groups of examples"
    for one in document.subgroups:
        if one.subgroup not in asked.subgroups or not set(one.methods) <= set(names):
            yield f"they have the subgroup {one.subgroup!r}, which was not asked for"
    if len(document.subgroups) > _MOST_LEVELS * len(asked.subgroups):
        yield "they have too many subgroups"


def too_few(floors: Floors) -> str:
    """Return why nothing is told of some examples."""
    return f"fewer than {floors.min_cell} examples of a class"


def _score(
    rows: SiteRows,
    asked: Asked,
    floors: Floors,
    method: str,
    metric: str,
    outputs: Sequence[NDArray[Any]],
    few: str | None,
) -> tuple[Score, NDArray[np.float64] | None]:
    """Return a method's score, and the influences that differences from it are computed with."""
    if few is not None:
        return Score(found=Limits(reason=few), seeds=(None,) * len(outputs)), None
    models = rows.models.get(method)
    found = estimates(asked.loss, metric, rows.y, outputs, rows.patients, models, floors)
    if found.own is None:
        told = Limits.of(interval_of(metric, found, len(rows.y)))
        return Score(found=told, seeds=(None,) * len(found.seeds)), None
    comparable = found.limits.reason is None
    if (method, metric) == (NULL, "auroc"):  # a constant has this area in every sample
        found = replace(found, own=replace(found.own, influence=np.zeros(1)), analysis=None)
    own, analysis = found.own, found.analysis
    assert own is not None
    return (
        Score(
            found=Limits.of(interval_of(metric, found, len(rows.y))),
            seeds=tuple(found.seeds),
            variance=own.variance,
            between_seeds=own.between_seeds,
            analysis=None if analysis is None else (analysis.value, analysis.variance),
            comparable=comparable,
        ),
        own.influence,
    )


def clinical_facts(
    rows: SiteRows, asked: Asked, floors: Floors, method: str, few: str | None
) -> dict[str, Any]:
    """Return calibration, net benefit and counts by risk of a method."""
    outputs, drawn = rows.outputs[method], method in rows.drawn
    task = task_of(asked.loss)
    if task == "regression":
        return {"groups": groups(rows.y, outputs, floors)} if drawn else {}
    if task == "multiclass":
        if not drawn or few is not None:
            return {}
        shares = [softmax(one, axis=1) for one in outputs]
        # Seeds differ in which examples they are right about, so that each counts alone.
        right = np.concatenate([one.argmax(1) == rows.y for one in shares])
        whose = rows.patients if rows.patients is not None else np.arange(len(rows.y))
        confidence = np.concatenate([one.max(1) for one in shares])
        found = risk_counts(right, confidence[None], (), floors, np.tile(whose, len(shares)))
        return {"risks": None if found is None else Risks(**asdict(found))}
    if few is not None:
        hidden = Limits(reason=few)
        return {"ici": hidden, "net_benefit": (hidden,) * len(asked.thresholds)}
    risks = np.stack([sigmoid(np.array(one, float).reshape(len(rows.y))) for one in outputs])
    counts = risk_counts(rows.y, risks, asked.thresholds, floors, rows.patients, GRID if drawn else ())
    assert counts is not None
    told = [at for at in asked.thresholds if at in counts.edges]
    benefits = dict(zip(told, _benefits(rows, outputs, told, floors), strict=True))
    why = Limits(reason=f"fewer than {floors.min_cell} events or non-events beside this threshold")
    ici, curve = _calibration(rows, outputs, floors)
    return {
        "ici": ici,
        "net_benefit": tuple(Limits.of(benefits[at]) if at in benefits else why for at in asked.thresholds),
        "curve": curve if drawn else None,
        "risks": _with_reach(rows, outputs, counts, floors) if drawn else None,
    }


def _benefits(
    rows: SiteRows, outputs: Sequence[NDArray[Any]], thresholds: Sequence[float], floors: Floors
) -> list[Interval]:
    """Return the net benefit at each threshold, a few at a time: each takes a number per example and seed."""
    return [
        one
        for start in range(0, len(thresholds), _AT_ONCE)
        for one in net_benefit(rows.y, outputs, thresholds[start : start + _AT_ONCE], rows.patients, floors)
    ]


def _with_reach(rows: SiteRows, outputs: Sequence[NDArray[Any]], counts: RiskCounts, floors: Floors) -> Risks:
    """Return counts by risk with the limits of the net benefit at their edges."""
    found = _benefits(rows, outputs, counts.edges, floors)
    ends = [(one.value, one.high) for one in found]
    reach = [high - value for value, high in ends if value is not None and high is not None]
    return Risks(**asdict(counts), reach=tuple(reach) if len(reach) == len(ends) else None)


def _treat_all(rows: SiteRows, asked: Asked, floors: Floors, few: str | None) -> tuple[Limits, ...]:
    if few is not None:
        return (Limits(reason=few),) * len(asked.thresholds)
    return tuple(map(Limits.of, treat_all(rows.y, asked.thresholds, rows.patients, floors)))


def _calibration(
    rows: SiteRows, outputs: Sequence[NDArray[Any]], floors: Floors
) -> tuple[Limits, Curve | None]:
    """Return the integrated calibration index, or why it is not estimable, and the curve."""
    found = support("binary", rows.y, "oe_ratio", rows.patients, floors=floors)
    if found.reason is not None:
        return Limits(reason=found.reason), None
    beyond = 0 if floors.min_cell == 1 else floors.min_cell
    curve = calibration_curve(rows.y, outputs, rows.patients, beyond=beyond)
    if curve is None:
        return Limits(reason=SAME), None
    index = Limits(value=curve.ici, low=curve.ici_low, high=curve.ici_high, caution=found.caution)
    parts = {name: getattr(curve, name).tolist() for name in Curve.model_fields}
    return index, Curve(**parts)


def groups(y: NDArray[Any], outputs: Sequence[NDArray[Any]], floors: Floors = NO_FLOORS) -> tuple[Group, ...]:
    """Return means of groups of about equally many examples of a quantity that are predicted alike."""
    predicted = np.concatenate([np.asarray(one, float)[:, 0] for one in outputs])
    observed, seeds = np.tile(np.asarray(y, float), len(outputs)), len(outputs)
    order = np.argsort(predicted, kind="stable")
    count = int(np.clip(len(y) // max(_LEAST_PER_GROUP, floors.min_cell), 1, _MOST_GROUPS))
    found = []
    for rows in np.array_split(order, count):
        mean, spread = float(observed[rows].mean()), float(observed[rows].std())
        half = 1.96 * spread / np.sqrt(max(1, round(len(rows) / seeds)))
        found.append(
            Group(predicted=float(predicted[rows].mean()), observed=mean, low=mean - half, high=mean + half)
        )
    return tuple(found)


def _told_levels(
    rows: SiteRows, asked: Asked, floors: Floors, few: str | None
) -> dict[str, dict[str, NDArray[np.bool_]]]:
    if few is not None:
        return {text: {"": np.ones(len(rows.y), bool)} for text in rows.subgroups}
    classes = rows.y if has_classes(asked.loss) else np.zeros(len(rows.y))
    return told_levels(rows.subgroups, classes, share_of_patient(classes, rows.patients), floors)


def _subgroups(
    rows: SiteRows, asked: Asked, floors: Floors, text: str, levels: Mapping[str, NDArray[np.bool_]]
) -> Iterator[Subgroup]:
    """Yield the scores of each level of a subgroup."""
    task = task_of(asked.loss)
    for level, of in levels.items():
        if level == "":
            why = f"levels with fewer than {floors.min_cell} examples of a class, or told by others"
            yield Subgroup(subgroup=text, level="other", examples=None, reason=why, methods={})
            continue
        y, patients = rows.y[of], None if rows.patients is None else rows.patients[of]
        scores = {}
        for method, outputs in rows.outputs.items():
            models = rows.models[method][of] if method in rows.models else None
            kept = [one[of] for one in outputs]
            scores[method] = {
                name: Limits.of(
                    interval_of(name, estimates(asked.loss, name, y, kept, patients, models, floors), len(y))
                )
                for name in (SCORES[task] if asked.alike else _over_models(task))
            }
        events = int((y > 0.5).sum()) if task == "binary" else None
        yield Subgroup(subgroup=text, level=level, examples=len(y), events=events, methods=scores)


def _over_models(task: Task) -> tuple[str, ...]:
    """Return the scores of several sites together; the others compare predictions of different models.

    Each example adds its own part to them, or they are the AUROC, which counts pairs of one model.
    """
    added = (*_ADDED, *(["auroc"] if task == "binary" else []))
    return tuple(name for name in SCORES[task] if name in added)


def class_counts(
    y: NDArray[Any], floors: Floors = NO_FLOORS, patients: NDArray[np.intp] | None = None
) -> dict[str, int | None]:
    """Return the rows of each class; None if a count is below the floor, or would tell such a one.

    All rows are known, so that the counts that are not told must be enough together.

    >>> y = np.array([0] * 20 + [1] * 3)
    >>> class_counts(y), class_counts(y, Floors(10, 5))
    ({'0': 20, '1': 3}, {'0': None, '1': None})
    """
    values, counts = np.unique(y, return_counts=True)
    told = {str(int(value)): int(count) for value, count in zip(values, counts, strict=True)}
    several = {
        str(int(value)): count if patients is None else len(np.unique(patients[y == value]))
        for value, count in zip(values, counts, strict=True)
    }
    hidden = [name for name, count in several.items() if count < floors.min_cell]
    if hidden:
        rest = sorted((name for name in told if name not in hidden), key=told.__getitem__)
        while rest and (len(hidden) < 2 or sum(told[name] for name in hidden) < floors.min_cell):
            hidden.append(rest.pop(0))
    return {name: None if name in hidden else count for name, count in told.items()}
