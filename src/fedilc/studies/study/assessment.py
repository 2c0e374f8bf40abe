"""What reviewers of prediction models ask beyond scores: calibration, usefulness, and choices at an edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import NormalDist
from typing import Any

import numpy as np

from fedilc.algorithms.loss_registry import task_of
from fedilc.evaluation.intervals import LEVEL, Interval
from fedilc.studies.study.choice import Choice
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.scoring import OE_RATIO
from fedilc.studies.study.site_scores import Limits, MethodScores, SiteScores, Subgroup

TREAT_ALL = "treat all"
_LEAST = {"hidden": 0.0, "max_depth": 1.0, "penalty_weight": 0.0, "weight_decay": 0.0}  # nothing is below
NOT_TOGETHER = (
    "scores and curves of all held-out sites together need their rows in one place, and these stayed at the "
    "sites"
)


def assessment(result: StudyResult) -> dict[str, Any]:
    """Return what study.json says of calibration, net benefit and choices at the edge of what was offered."""
    plan = result.plan
    places = {
        site: clinical_facts(
            plan.data.loss, document, {method: result.named(site, method) for method in result.scores[site]}
        )
        for site, document in result.sites.items()
    }
    facts: dict[str, Any] = {"edges": edges(plan, result.choices)}
    for key in ("calibration", "net_benefit", "drawn"):
        facts |= {key: {site: of[key] for site, of in places.items() if key in of}}
    if plan.settings.subgroups:
        order = {text: place for place, text in enumerate(plan.settings.subgroups)}
        found = [one for of in places.values() for one in of["subgroups"]]
        facts["subgroups"] = sorted(found, key=lambda one: order[one["subgroup"]])
    if task_of(plan.data.loss) == "binary":
        facts["net_benefit"] = {"thresholds": list(plan.settings.thresholds), "sites": facts["net_benefit"]}
    else:
        del facts["calibration"], facts["net_benefit"]
    if result.together is not None:
        names = {method: method for method in result.together.methods}
        facts["together"] = clinical_facts(plan.data.loss, result.together, names)
    elif len(places) > 1:
        facts["together"] = {"reason": NOT_TOGETHER}
    return facts


def clinical_facts(loss: str, document: SiteScores, named: Mapping[str, str]) -> dict[str, Any]:
    """Return the same of one site; `named` has for each method of the study its name in the document."""
    methods = {method: document.methods[name] for method, name in named.items()}
    facts: dict[str, Any] = {
        "subgroups": [_subgroup_facts(one, document.site, named) for one in document.subgroups],
        "drawn": {
            method: one.model_dump(include={"curve", "risks", "groups"}, exclude_none=True)
            for method, one in methods.items()
            if one.curve or one.risks or one.groups
        },
    }
    if task_of(loss) == "binary":
        benefits = {method: one.net_benefit for method, one in methods.items()}
        facts["calibration"] = {method: _calibration(one) for method, one in methods.items()}
        facts["net_benefit"] = {
            method: [asdict(one.interval) for one in found]
            for method, found in (benefits | {TREAT_ALL: document.treat_all}).items()
        }
    return facts


def _subgroup_facts(found: Subgroup, place: str, named: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "subgroup": found.subgroup,
        "level": found.level,
        "place": place,
        "examples": found.examples,
    }
    if found.events is not None:
        facts["events"] = found.events
    if found.reason is not None:
        facts["reason"] = found.reason
    scores = {
        method: {name: asdict(one.interval) for name, one in found.methods[of].items()}
        for method, of in named.items()
        if of in found.methods
    }
    return {**facts, "methods": scores}


def _calibration(found: MethodScores) -> dict[str, Any]:
    """Return O:E and ICI with their intervals, or why they are not estimable."""
    score, index = found.scores[OE_RATIO], found.ici or Limits()
    ratio = Interval(None, None, None, reason=score.found.reason)
    if score.analysis is not None:
        at, variance = score.analysis
        reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * variance**0.5
        value, low, high = (float(np.exp(at + sign * reach)) for sign in (0, -1, 1))
        ratio = Interval(value, low, high, caution=score.found.caution)
    return {"oe_ratio": asdict(ratio), "ici": asdict(index.interval)}


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
