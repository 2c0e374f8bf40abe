"""What reviewers of prediction models ask beyond scores: calibration, usefulness, and choices at an edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedilc.algorithms.loss_registry import task_of
from fedilc.evaluation.calibration import Floats
from fedilc.evaluation.calibration_curve import calibration_curve
from fedilc.evaluation.decision_curve import net_benefit, treat_all
from fedilc.evaluation.estimates import estimate, support
from fedilc.evaluation.intervals import LEVEL, Interval
from fedilc.progress import counted
from fedilc.studies.study.plan import Choice, StudyPlan
from fedilc.studies.study.result import Outputs, StudyResult
from fedilc.studies.study.subgroups import subgroup_facts, subgroup_levels

ALL_SITES = "all held-out sites"
TREAT_ALL = "treat all"
_LEAST = {"hidden": 0.0, "max_depth": 1.0, "penalty_weight": 0.0, "weight_decay": 0.0}  # nothing is below
SAME = "no finite fit: predictions are all equal, or part events from non-events"


def assessment(result: StudyResult) -> dict[str, Any]:
    """Return what study.json says of calibration, net benefit and choices at the edge of what was offered."""
    plan = result.plan
    facts: dict[str, Any] = {"edges": edges(plan, result.choices)}
    if plan.settings.subgroups:
        facts["subgroups"] = subgroups(result)
    if task_of(plan.data.loss) != "binary":
        return facts
    thresholds = plan.settings.thresholds
    places = places_of(result)
    patients = {
        place: plan.data.patients_of(plan.held_out if place == ALL_SITES else (place,)) for place in places
    }
    found: dict[str, dict[str, Any]] = {place: {} for place in places}
    curves = [(place, method) for place, (_, methods) in places.items() for method in methods]
    for place, method in counted("calibration of models", curves):
        y, methods = places[place]
        found[place][method] = calibration_facts(y, methods[method], patients[place])
    facts["calibration"] = found
    facts["net_benefit"] = {
        "thresholds": list(thresholds),
        "sites": {
            place: {
                method: [asdict(one) for one in found]
                for method, found in {
                    **{
                        name: net_benefit(y, outputs, thresholds, patients[place])
                        for name, outputs in methods.items()
                    },
                    TREAT_ALL: treat_all(y, thresholds, patients[place]),
                }.items()
            }
            for place, (y, methods) in places.items()
        },
    }
    return facts


def subgroups(result: StudyResult) -> list[dict[str, Any]]:
    """Return every method's scores in each subgroup, at all held-out sites together and at each."""
    plan = result.plan
    places = {
        place: (plan.held_out if place == ALL_SITES else (place,), y, methods)
        for place, (y, methods) in places_of(result).items()
    }
    return [
        one
        for text in plan.settings.subgroups
        for one in subgroup_facts(
            plan.data.loss,
            text,
            subgroup_levels(plan.data, text),
            places,
            plan.data.patients_of,
            plan.models_at,
        )
    ]


def places_of(result: StudyResult) -> dict[str, tuple[Floats, dict[str, list[Floats]]]]:
    """Return labels and each method's outputs by seed: of all held-out sites together, and of each site.

    Together are the methods that predict at every site.
    """
    outputs = result.outputs or {}
    found = {site: (result.plan.data.labels[site], methods) for site, methods in outputs.items()}
    if len(found) < 2:
        return found
    return {ALL_SITES: (np.concatenate([y for y, _ in found.values()]), together(outputs)), **found}


def together(outputs: Outputs) -> dict[str, list[Floats]]:
    """Return the outputs of those methods that predict at every site, one site after another, by seed."""
    sites = list(outputs.values())
    common = [method for method in sites[0] if all(method in methods for methods in sites)]
    return {
        method: [np.concatenate(parts) for parts in zip(*(of[method] for of in sites), strict=True)]
        for method in common
    }


def calibration_facts(
    y: Floats, outputs: Sequence[Floats], patients: NDArray[np.intp] | None = None
) -> dict[str, Any]:
    """Return O:E and ICI with their intervals, or why they are not estimable.

    >>> calibration_facts(np.array([0.0, 1.0]), [np.zeros((2, 1))])["oe_ratio"]["reason"]
    '1 event, fewer than 10'
    """
    found = support("binary", y, "oe_ratio", patients)
    reason = found.reason
    one = estimate("binary", "oe_ratio", y, outputs, patients)
    curve = None if reason is not None else calibration_curve(y, outputs, patients)
    ratio = Interval(None, None, None, reason=reason)
    if one is not None:
        reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * one.variance**0.5
        value, low, high = (float(np.exp(one.value + sign * reach)) for sign in (0, -1, 1))
        ratio = Interval(value, low, high, caution=found.caution)
    index = Interval(None, None, None, reason=reason or SAME)
    if curve is not None:
        index = Interval(curve.ici, curve.ici_low, curve.ici_high, caution=ratio.caution)
    return {"oe_ratio": asdict(ratio), "ici": asdict(index)}


def edges(plan: StudyPlan, choices: Mapping[str, Mapping[str, Choice]]) -> list[dict[str, Any]]:
    """Return what was chosen at the edge of what was offered, if values beyond it exist: they may be better.

    One entry per method and setting: its value, "lowest" or "highest", and at how many held-out sites.
    """
    found: dict[tuple[str, str, str, float], int] = {}
    for chosen in choices.values():
        for method in (name for name in plan.methods if name in chosen):
            choice = chosen[method]
            offered: dict[str, list[float]] = {}
            for entry in plan.grid(method):
                for name, value in _numbers(entry).items():
                    if isinstance(value, int | float) and not isinstance(value, bool):
                        offered.setdefault(name, []).append(float(value))
            for name, values in offered.items():
                value = _numbers(choice.options).get(name)
                if value == _LEAST.get(name):
                    continue
                if len(set(values)) > 1 and value in (min(values), max(values)):
                    edge = "lowest" if value == min(values) else "highest"
                    key = (method, name, edge, float(value))
                    found[key] = found.get(key, 0) + 1
            if choice.round == plan.most_rounds(method):
                key = (method, "rounds", "highest", float(choice.round))
                found[key] = found.get(key, 0) + 1
    return [
        {"method": method, "setting": name, "edge": edge, "value": value, "sites": count, "of": len(choices)}
        for (method, name, edge, value), count in sorted(found.items())
    ]


def _numbers(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a grid with the sum of its hidden layers' widths in place of these."""
    hidden = entry.get("hidden")
    return {**entry, "hidden": sum(hidden)} if isinstance(hidden, tuple | list) else dict(entry)


def edge_notes(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence per setting that a method chose at the same edge at most held-out sites.

    >>> entry = {"method": "a", "setting": "rounds", "edge": "highest", "value": 20.0, "sites": 3, "of": 4}
    >>> edge_notes([entry])
    ['a chose the highest rounds offered (20) for 3 of 4 held-out sites; higher ones may be better']
    """
    return [
        f"{one['method']} chose the {one['edge']} {one['setting']} offered ({one['value']:g}) for "
        f"{one['sites']} of {one['of']} held-out sites; {one['edge'].replace('est', 'er')} ones may be better"
        for one in found
        if 2 * one["sites"] > one["of"]
    ]
