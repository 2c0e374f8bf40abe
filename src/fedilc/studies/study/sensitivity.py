"""A study once more without indicators of missing values: do its results rest on which cells are empty?

Which values are missing often depends on the site and on its workflow, and a model that learns from that may
fail elsewhere. Without indicators, a missing number is the mean of the training sites, and a missing name is
in no category. All settings are chosen anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedilc.evaluation.estimates import difference
from fedilc.evaluation.intervals import mean_interval
from fedilc.studies.study.comparators import NULL
from fedilc.studies.study.data import StudyTables
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.run import run_study
from fedilc.studies.worker_pool import Show

NOTHING = "no column has missing values, so that there are no indicators to leave out"


def run_without_indicators(
    plan: StudyPlan, folder: Path, jobs: int = 1, show: Show = lambda _: None
) -> StudyResult | None:
    """Do the runs of a study without indicators of missing values; None if its tables have none."""
    data = plan.data
    if not isinstance(data, StudyTables) or not data.has_indicators:
        return None
    settings = replace(plan.settings, sensitivity=False, subgroups=())
    return run_study(StudyPlan(data.without_indicators(), settings), folder, jobs, show)


def sensitivity_facts(result: StudyResult, without: StudyResult | None) -> dict[str, Any]:
    """Return each method's mean scores with and without indicators, and their paired difference."""
    if without is None:
        return {"reason": NOTHING}
    methods = dict.fromkeys(method for of in without.scores.values() for method in of if method != NULL)
    return {
        "methods": {
            method: {metric: _compared(result, without, method, metric) for metric in result.metrics}
            for method in methods
        }
    }


def _compared(result: StudyResult, without: StudyResult, method: str, metric: str) -> dict[str, Any]:
    """Return the mean over sites with, without, and the difference, which is paired by example."""
    sites = _sites([result, without], method, metric)
    ours, others = ([one.scores[site][method][metric] for site in sites] for one in (result, without))
    apart = [difference(there, here) for here, there in zip(ours, others, strict=True)]
    return {
        "with": asdict(mean_interval(ours, metric)),
        "without": asdict(mean_interval(others, metric)),
        "difference": asdict(mean_interval(apart)),
        "sites": len(sites),
    }


def _sites(results: Sequence[StudyResult], method: str, metric: str) -> list[str]:
    """Return the sites at which a method has a score in all these results."""
    return [
        site
        for site in results[0].scores
        if all(
            method in one.scores.get(site, {}) and np.isfinite(one.scores[site][method][metric].value)
            for one in results
        )
    ]
