"""The verdict of a study in three sentences: which method, by how much and how sure, what is left open."""

from __future__ import annotations

from fedilc.evaluation.comparison import Comparison
from fedilc.evaluation.scores import HIGHER_IS_BETTER
from fedilc.evaluation.significance import LEVEL
from fedilc.studies.study import StudyResult
from fedilc.studies.study_runs import ALONE, POOLED

NAMES = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "log_loss": "log loss",
    "brier": "Brier score",
    "accuracy": "accuracy",
    "calibration_slope": "calibration slope",
    "calibration_intercept": "calibration intercept",
    "rmse": "RMSE",
    "mae": "mean absolute error",
    "r2": "R²",
}


def deciding_metric(result: StudyResult) -> str:
    """Return the first score that is defined at a held-out silo."""
    return next((name for name in result.metrics if result.sites_with(name)), "log_loss")


def verdict(result: StudyResult) -> tuple[str, str, str]:
    """Return which method is best at sites that took no part; by how much and how sure; what is not shown."""
    metric = deciding_metric(result)
    best, reference = result.best(metric), result.plan.reference
    comparisons = result.comparisons(metric)
    if not comparisons:
        return _alone(result, metric)
    leader = best if best != reference else _closest(comparisons)
    return (
        _which(result, metric, best),
        _how_sure(comparisons, leader, best, reference, metric),
        _power(result, comparisons, leader, metric),
    )


def _which(result: StudyResult, metric: str, best: str) -> str:
    names, sites = result.plan.settings.algorithms, result.sites_with(metric)
    extreme = "highest" if metric in HIGHER_IS_BETTER else "lowest"
    others = [name for name in (result.plan.reference, ALONE, POOLED) if name != best]
    called = {ALONE: "a model of the site's own data", POOLED: "pooled data, if sharing were allowed"}
    beside = [
        f"{called.get(name, name)} {value:.3f}"
        for name in others
        if (value := result.mean(name, metric).value) is not None
    ]
    where = "the held-out site" if len(sites) == 1 else f"{len(sites)} held-out sites"
    value = result.mean(best, metric).value
    return (
        f"At sites that took no part in training, {best} had the {extreme} {NAMES[metric]} of {len(names)} "
        f"methods: {value:.3f} on average over {where} ({'; '.join(beside)})."
    )


def _how_sure(comparisons: dict[str, Comparison], leader: str, best: str, reference: str, metric: str) -> str:
    found = comparisons[leader]
    mean = found.difference
    amount = f"{mean.value:+.3f}" if mean.value is not None else "unknown"
    at_these = (
        f"95 % interval at these sites {mean.low:+.3f} to {mean.high:+.3f}" if mean.low is not None else ""
    )
    higher = metric in HIGHER_IS_BETTER
    wins = sum(
        one.value is not None and (one.value > 0) == higher and one.value != 0
        for one in found.by_site.values()
    )
    count = f"better at {wins} of {len(found.by_site)} sites"
    subject = (
        f"{best} differs from {reference} by {amount}"
        if best == leader
        else f"No method was better than {reference} on average; the nearest, {leader}, differs by {amount}"
    )
    if found.corrected_p is None:
        return f"{subject} ({at_these}; {count}); with fewer than three sites no test over sites is possible."
    many = f" after correction for {len(comparisons)} comparisons" if len(comparisons) > 1 else ""
    sure = (
        "which is more than chance between sites explains"
        if found.corrected_p < LEVEL
        else "which chance between sites may explain"
    )
    return f"{subject} ({at_these}; {count}; p = {found.corrected_p:.2g} over sites{many}), {sure}."


def _power(result: StudyResult, comparisons: dict[str, Comparison], leader: str, metric: str) -> str:
    sites = result.sites_with(metric)
    examples = sum(len(result.plan.data.labels(site)) for site in sites)
    size = f"{len(sites)} sites and {examples:,} examples"
    needed = comparisons[leader].detectable
    if needed is None:
        return (
            f"With {size}, these data cannot show how methods differ at the next site; they show how they "
            "differ at these."
        )
    return (
        f"With {size} these data could have shown a mean difference of {needed:.3f} or more (80 % power); "
        "that smaller differences exist, or do not, they cannot show."
    )


def _closest(comparisons: dict[str, Comparison]) -> str:
    return min(comparisons, key=lambda name: abs(comparisons[name].difference.value or 0.0))


def _alone(result: StudyResult, metric: str) -> tuple[str, str, str]:
    """Return the verdict on one method, which is compared with nothing."""
    name = result.plan.reference
    sites = result.sites_with(metric)
    return (
        f"At sites that took no part in training, {name} had {NAMES[metric]} {result.mean(name, metric)} on "
        f"average over {len(sites)} held-out sites.",
        "No other method was trained, so that nothing is compared.",
        "Whether another method is better at the next site these numbers cannot show.",
    )
