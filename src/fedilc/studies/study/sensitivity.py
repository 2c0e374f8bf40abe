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

from fedilc.evaluation.intervals import interval_of
from fedilc.evaluation.significance import mean_over_sites
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
    """Return the mean over sites with, without, and the difference, whose resamples are the same examples."""
    sites = _sites([result, without], method, metric)
    means = {
        name: asdict(interval_of(mean_over_sites({site: one.scores[site][method][metric] for site in sites})))
        if sites
        else asdict(interval_of(np.array([np.nan])))
        for name, one in (("with", result), ("without", without))
    }
    apart = {
        site: without.scores[site][method][metric] - result.scores[site][method][metric] for site in sites
    }
    change = interval_of(mean_over_sites(apart) if sites else np.array([np.nan]))
    return {**means, "difference": asdict(change), "sites": len(sites)}


def _sites(results: Sequence[StudyResult], method: str, metric: str) -> list[str]:
    """Return the sites at which a method has a score in all these results."""
    return [
        site
        for site in results[0].scores
        if all(
            method in one.scores.get(site, {}) and np.isfinite(one.scores[site][method][metric][0])
            for one in results
        )
    ]
