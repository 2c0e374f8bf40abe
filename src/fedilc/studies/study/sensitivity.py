"""A study once more without indicators of missing values: do its results rest on which cells are empty?

Which values are missing often depends on the site and on its workflow, and a model that learns from that may
fail elsewhere. Without indicators, a missing number is the mean of the training sites, and a missing name is
in no category. All settings are chosen anew.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedilc.evaluation.estimates import Estimate
from fedilc.evaluation.intervals import mean_interval
from fedilc.studies.study.comparators import NULL
from fedilc.studies.study.data import StudyTables
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.run import run_study
from fedilc.studies.worker_pool import Show

NOTHING = "no column has missing values, so that there are no indicators to leave out"


def run_without_indicators(
    result: StudyResult, folder: Path, jobs: int = 1, show: Show = lambda _: None
) -> StudyResult | None:
    """Do the runs of a study without indicators of missing values; None if its tables have none."""
    plan, data = result.plan, result.plan.data
    if not isinstance(data, StudyTables) or not data.has_indicators:
        return None
    settings = replace(plan.settings, sensitivity=False, subgroups=())
    floors = next(iter(result.sites.values())).floors
    return run_study(StudyPlan(data.without_indicators(), settings), folder, jobs, show, floors, result)


def sensitivity_facts(result: StudyResult, without: StudyResult | None) -> dict[str, Any]:
    """Return each method's mean scores with and without indicators, and their paired difference."""
    if without is None:
        return {"reason": NOTHING}
    trained = dict.fromkeys(method for methods in without.scores.values() for method in methods)
    return {
        "methods": {
            method: {metric: _compared(result, without, method, metric) for metric in result.metrics}
            for method in trained
            if method != NULL
        }
    }


def _compared(result: StudyResult, without: StudyResult, method: str, metric: str) -> dict[str, Any]:
    """Return the mean over sites with, without, and the difference, which is paired by example."""
    found = []
    for site in result.sites:
        here, there = result.score(site, method, metric), without.score(site, method, metric)
        of_examples = without.sites[site].beside.get(method, {}).get(metric)
        if here is None or there is None or of_examples is None:
            continue
        ours, others = here.estimate, there.estimate
        assert ours is not None
        assert others is not None
        variance = of_examples + here.between_seeds + there.between_seeds
        found.append((ours, others, Estimate.of(others.value - ours.value, variance)))
    return {
        "with": asdict(mean_interval([one for one, _, _ in found], metric)),
        "without": asdict(mean_interval([one for _, one, _ in found], metric)),
        "difference": asdict(mean_interval([one for _, _, one in found])),
        "sites": len(found),
    }
