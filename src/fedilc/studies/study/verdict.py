"""The verdict of a study in five sentences.

They say what to expect at the next site of the procedure that chooses a method on the training sites, and
whether it beats a constant and plain regression; then, as exploration, which method did best at these sites,
by how much and how sure, and what is left open. If one method was trained, nothing was chosen, and the second
one is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fedilc.algorithms.loss_registry import LossName, has_classes, task_of
from fedilc.data.tables.table_notes import LEAK
from fedilc.errors import listed
from fedilc.evaluation.estimates import MIN_COUNT, size_of
from fedilc.evaluation.metrics import HIGHER_IS_BETTER
from fedilc.evaluation.next_site import MOST_WITH_PRIOR
from fedilc.evaluation.significance import FEWEST_SITES, LEVEL, Comparison, p_phrase
from fedilc.studies.study.choice import LEAST_GAIN
from fedilc.studies.study.comparators import ALONE, CHOSEN, NULL, POOLED, pooled_regression
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.site_scores import SiteScores

NAMES = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "log_loss": "log loss",
    "log_loss_refitted": "log loss, intercept refitted",
    "brier": "Brier score",
    "accuracy": "accuracy",
    "calibration_slope": "calibration slope",
    "calibration_intercept": "calibration intercept",
    "rmse": "RMSE",
    "mae": "mean absolute error",
    "r2": "R²",
    "oe_ratio": "observed to expected events",
}
CALIBRATION = ("calibration_slope", "calibration_intercept")  # of which neither more nor less is better


def deciding_metric(result: StudyResult) -> str:
    """Return the first score that is estimable at a held-out silo."""
    return next((name for name in result.metrics if result.sites_with(name)), "log_loss")


def verdict(result: StudyResult) -> tuple[str, ...]:
    """Return what to expect next; how the chosen procedure did; which was best; how sure; what is open."""
    metric = deciding_metric(result)
    if not result.sites_with(metric):
        return _nothing()
    procedure = [_procedure(result, metric)] if result.headline == CHOSEN else []
    return _next_site(result, metric), *procedure, *_compared(result, metric)


def _next_site(result: StudyResult, metric: str) -> str:
    """Return what to expect at a new site of the chosen procedure, or of the only method."""
    name, headline = NAMES[metric], result.headline
    found = result.next_site(headline, metric)
    method = "the chosen procedure" if headline == CHOSEN else headline
    if found.low is None or found.high is None:
        return f"What {name} to expect of {method} at a new site is unknown: {found.reason}."
    more = ""
    if found.headline == "empirical":
        more = (
            ", which assumes that sites differ as they did in other validations of clinical models; from "
            f"these sites alone, {found.jeffreys_low:.2f} to {found.jeffreys_high:.2f}"
        )
    elif found.sites <= MOST_WITH_PRIOR:
        more = "; it is wide because so few sites say little about how sites differ"
    return (
        f"At a new site like these, expect {name} between {found.low:.2f} and {found.high:.2f} with {method} "
        f"(95 % prediction interval from {found.sites} sites{more})."
    )


def _procedure(result: StudyResult, metric: str) -> str:
    """Return the mean score of the chosen procedure, and which simpler models it is not shown to beat."""
    simpler = _simpler(result)
    means = {text: result.mean(name, metric).value for name, text in simpler.items()}
    beside = [f"{text} {value:.3f}" for text, value in means.items() if value is not None]
    brackets = f" ({'; '.join(beside)})" if beside else ""
    counts = Counter(result.chosen.values())
    scores = [metric, *(["log_loss"] if "log_loss" in result.metrics and metric != "log_loss" else [])]
    said = [
        f"it is {text} for every site" if set(counts) == {name} else _not_beaten(result, name, text, scores)
        for name, text in simpler.items()
    ]
    plain, taken = result.plan.regression, [f"{name} for {count}" for name, count in counts.most_common()]
    by = f"by more than a standard error and at least {LEAST_GAIN:g}"
    clearly = ""
    if plain in result.algorithms:
        clearly = f" if that is lower than {plain}'s {by}, and {plain} otherwise"
    return (
        f"The chosen procedure had {NAMES[metric]} {result.mean(CHOSEN, metric).value:.3f} "
        f"{_where(result, result.sites_with(metric))}{brackets}"
        f"{''.join(f'; {one}' for one in said if one)}; for each site it takes the federated method of "
        f"lowest loss at the others{clearly} ({', '.join(taken)})."
    )


def _simpler(result: StudyResult) -> dict[str, str]:
    """Return what a procedure has to beat, in words: a constant, and plain regression."""
    loss = result.plan.data.loss
    kind = "logistic" if has_classes(loss) else "ridge"
    named = {
        NULL: "a constant prediction",
        str(result.plan.regression): f"plain {kind} regression",
        pooled_regression(loss): f"{kind} regression of the pooled data",
    }
    trained = [set(methods) for methods in result.scores.values()]
    found = {name: text for name, text in named.items() if all(name in names for names in trained)}
    return dict(list(found.items())[:2])  # federated regression is the same as that of the pooled data


def _not_beaten(result: StudyResult, other: str, text: str, metrics: Sequence[str]) -> str | None:
    """Return that the chosen procedure is not shown to beat a method in these scores; None if it is."""
    differences, better = [], False
    for metric in metrics:
        found = result.against(other, metric)
        if found is None:
            continue
        mean, sign = found.over_sites, 1 if metric in HIGHER_IS_BETTER else -1
        limits = ", too few for an interval" if len(found.by_site) < FEWEST_SITES else ""
        if mean.low is not None and mean.high is not None:
            if min(sign * mean.low, sign * mean.high) > 0:
                continue
            limits = f", 95 % interval {mean.low:+.3f} to {mean.high:+.3f}"
        better |= sign * (mean.value or 0.0) > 0
        sites = f"{len(found.by_site)} site{'s' * (len(found.by_site) > 1)}"
        differences.append(f"difference of {NAMES[metric]} over {sites} {mean.value or 0.0:+.3f}{limits}")
    verb = "is not shown to beat" if better else "does not beat"
    return f"it {verb} {text} ({'; '.join(differences)})" if differences else None


def _compared(result: StudyResult, metric: str) -> tuple[str, str, str]:
    best, reference = result.best(metric), result.plan.reference
    comparisons = result.comparisons(metric)
    if not comparisons:
        return _alone(result, metric)
    if all(one.value == 0.0 for found in comparisons.values() for one in found.by_site.values()):
        return _tied(result, metric)
    closest = min(comparisons, key=lambda name: abs(comparisons[name].difference.value or 0.0))
    leader = best if best != reference else closest
    sure = _how_sure(comparisons, leader, best, reference, higher=metric in HIGHER_IS_BETTER)
    return _which(result, metric, best), sure, _left_open(result, leader, comparisons[leader], metric)


def alarm(result: StudyResult) -> str | None:
    """Return what makes the scores implausible: an AUROC over 0.97 at most held-out sites of tables."""
    if not result.plan.data.is_table or "auroc" not in result.metrics:
        return None
    best, sites = result.best("auroc"), result.sites_with("auroc")
    over = [site for site in sites if result.scores[site][best]["auroc"].value > LEAK]
    if 2 * len(over) <= len(sites):
        return None
    strong = [f"{name!r} ({area:.3f})" for name, area in result.plan.data.strongest[:3]]
    alone = f"; alone, these columns have the highest AUROC: {', '.join(strong)}" if strong else ""
    return (
        f"The AUROC of {best} is over {LEAK} at {len(over)} of {len(sites)} held-out sites. Few outcomes can "
        "be predicted so well: probably a column, or which of its cells are missing, is known only after the "
        f"outcome{alone}. Drop such columns (`drop`), and study again before you believe the verdict."
    )


def _which(result: StudyResult, metric: str, best: str) -> str:
    extreme = "highest" if metric in HIGHER_IS_BETTER else "lowest"
    count = len(result.algorithms)
    here = "As exploration: at these sites" if result.headline == CHOSEN else "At these sites"
    return (
        f"{here}, {best} had the {extreme} mean {NAMES[metric]} of {count} methods: "
        f"{_mean_beside_others(result, metric, best)}{_not_at(result, metric)}; being the {extreme} of "
        f"{count} is partly luck."
    )


def _mean_beside_others(result: StudyResult, metric: str, best: str) -> str:
    """Return the mean score of a method, and in brackets those that it is compared with."""
    sites = result.sites_with(metric)
    others = [name for name in (result.plan.reference, ALONE, POOLED) if name != best]
    called = {ALONE: "a model of the site's own data", POOLED: "a model of the pooled data"}
    beside = []
    for name in others:
        value, own = result.mean(name, metric).value, result.sites_of(name, metric)
        if value is not None:
            some = f" at {len(own)} of them" if len(own) < len(sites) else ""
            beside.append(f"{called.get(name, name)} {value:.3f}{some}")
    brackets = f" ({'; '.join(beside)})" if beside else ""
    return f"{result.mean(best, metric).value:.3f} {_where(result, sites)}{brackets}"


def _where(result: StudyResult, sites: Sequence[str]) -> str:
    """Return at which sites a mean was taken."""
    every = len(result.plan.held_out)
    if every == 1:
        return "at the held-out site"
    if len(sites) == every:
        return f"on average over {every} held-out sites"
    if len(sites) > 1:
        return f"on average over {len(sites)} of {every} held-out sites"
    return f"at {sites[0]}, one of {every} held-out sites"


def _not_at(result: StudyResult, metric: str) -> str:
    """Return at which sites the score is not estimable, and why."""
    reasons = {site: result.sites[site].reasons[metric] for site in result.plan.held_out}
    few = [f"{site} ({reason})" for site, reason in reasons.items() if reason is not None]
    return f"; it is not estimable at {listed(few)}" if few else ""


def _how_sure(
    comparisons: Mapping[str, Comparison], name: str, best: str, reference: str, *, higher: bool
) -> str:
    """Return by how much a method differs from the reference, and whether chance explains it."""
    found, others = comparisons[name], len(comparisons)
    mean, values = found.over_sites, [one.value or 0.0 for one in found.by_site.values()]
    wins = sum(value > 0 if higher else value < 0 for value in values)
    details = [f"better at {wins} of {len(values)} sites"]
    if mean.low is not None and mean.high is not None:
        details.insert(0, f"95 % interval over sites {mean.low:+.3f} to {mean.high:+.3f}")
    if found.corrected_p is not None:
        details.append(p_phrase(found.corrected_p))
    if others > 1 and len(details) > 1:
        details.append(f"interval and p corrected for {others} comparisons")
    who = "Its mean difference" if name == best else f"The mean difference of the nearest method, {name},"
    start = f"{who} from {reference} is {mean.value or 0.0:+.3f} ({'; '.join(details)})"
    if found.corrected_p is None:
        few = "fewer than three sites" if len(values) < FEWEST_SITES else "the same difference at every site"
        return f"{start}; with {few}, no test over sites is possible."
    if found.corrected_p < LEVEL:
        return f"{start}: there is evidence that {name} is {found.verdict} at sites like these."
    return (
        f"{start}: this is consistent with chance: there is no evidence that "
        f"{f'{name} is better' if name == best else 'they differ'}."
    )


def _left_open(result: StudyResult, name: str, found: Comparison, metric: str) -> str:
    """Return which differences from the reference these data do not exclude, on average and at one site."""
    sites, data, mean = result.sites_with(metric), result.plan.data, found.over_sites
    informs = _size(data.loss, [result.sites[site] for site in sites])
    many = f"{len(sites)} site{'s' * (len(sites) > 1)} ({informs})"
    if mean.low is None or mean.high is None:
        return (
            f"With {many}, these data show how methods differ at these sites; they cannot show how methods "
            f"differ at the next site{_without_leaks(result)}."
        )
    following = result.next_difference(name, metric)
    next_one = (
        f"; {len(sites)} sites are too few to say how {name} and {result.plan.reference} differ at a single "
        "new site"
    )
    if following.low is not None and following.high is not None and following.sites > MOST_WITH_PRIOR:
        alone = ", for this comparison alone" * (len(result.algorithms) > 2)
        next_one = (
            f", and at a single new site from {following.low:+.3f} to {following.high:+.3f} (95 % prediction "
            f"interval{alone})"
        )
    return (
        f"With {many}, these data leave open mean differences from {mean.low:+.3f} to {mean.high:+.3f}"
        f"{next_one}{_without_leaks(result)}."
    )


def _size(loss: LossName, sites: Sequence[SiteScores]) -> str:
    """Return how many examples these sites have, and how many events if all of them tell it."""
    rows, events = sum(site.examples for site in sites), [(site.classes or {}).get("1", 0) for site in sites]
    told = [count for count in events if count is not None]
    known = task_of(loss) == "binary" and len(told) == len(sites)
    return size_of(rows, sum(told) if known else None)


def _without_leaks(result: StudyResult) -> str:
    """Return that the scores rest on columns that probably are the label, if there are such columns."""
    names = [repr(name) for name in result.plan.data.leaks]
    verb = "predicts" if len(names) == 1 else "predict"
    if not names:
        return ""
    return (
        f"; these data cannot show how well a model does without {listed(names)}, which alone {verb} the "
        "label almost perfectly"
    )


def _tied(result: StudyResult, metric: str) -> tuple[str, str, str]:
    """Return the verdict on methods that have the same score at every site."""
    count = len(result.algorithms)
    mean = _mean_beside_others(result, metric, result.plan.reference)
    return (
        f"All {count} methods had the same {NAMES[metric]} at every held-out site: {mean}"
        f"{_not_at(result, metric)}.",
        "No method is better by this score; the other scores in the tables may tell them apart.",
        f"These data cannot show which method is better at a site where their {NAMES[metric]} differs"
        f"{_without_leaks(result)}.",
    )


def _alone(result: StudyResult, metric: str) -> tuple[str, str, str]:
    """Return the verdict on one method, which is compared with nothing."""
    name = result.plan.reference
    sites = result.sites_with(metric)
    return (
        f"At these sites, {name} had {NAMES[metric]} {result.mean(name, metric)} "
        f"{_where(result, sites)}{_not_at(result, metric)}.",
        "No other method was trained, so nothing is compared.",
        f"These data cannot show whether another method is better at the next site{_without_leaks(result)}.",
    )


def _nothing() -> tuple[str, str, str, str]:
    """Return the verdict on sites that are all too small for any score."""
    return (
        "What to expect at a new site is unknown.",
        f"No score is estimable: every held-out site has fewer than {MIN_COUNT} examples.",
        "So no method can be compared with another.",
        "These data cannot show how any method does at a new site.",
    )
