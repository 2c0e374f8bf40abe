"""The numbers of the paper's tables, and its claims about the order of the algorithms, tested on ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from fedilc.evaluation import CRITERIA
from fedilc.evaluation.inconsistency import INCONSISTENCY
from fedilc.evaluation.metrics import lower_is_better
from fedilc.evaluation.significance import FEWEST_SEEDS, LEVEL, holm, spread
from fedilc.paper.campaign import DOMAIN_ACCURACY, Campaign, compare
from fedilc.report.tables import NOTHING, Cell, Column, TableData, mean_cell, p_text, spread_cell, words

BENCHMARKS = ("color-mnist", "rotated-cifar10", "eicu")
ORDER = ("fedsgd", "geometric", "fedcurv", "fishr-inter-geo", "fishr-intra-arith", "fishr-intra-geo")
FAR = 2.0
_OTHER_DATA = ("eicu-demo", "eicu-synthetic")
# The paper's areas are those of thresholded predictions, so they are compared with our thresholded ones.
_TABLES = {
    "test_loss": "ood_loss",
    "test_accuracy": "ood_accuracy",
    "test_thresholded_auroc": "aucroc",
    "test_thresholded_auprc": "aucpr",
}
_FAIRNESS = {"domain_fairness_variance": "variance_x1000", "domain_fairness_entropy": "entropy_x10"}
_FACTORS = {"fairness_variance": 1000.0, "fairness_entropy": 10.0}
_INTER, _INTRA = "fishr-inter-geo", "fishr-intra-geo"
_TITLES = {
    "test_loss": "OOD loss",
    "test_accuracy": "OOD accuracy",
    "test_thresholded_auroc": "OOD AUCROC†",
    "test_thresholded_auprc": "OOD AUCPR†",
    "domain_fairness_variance": "variance over sub-environments (×1000)",
    "domain_fairness_entropy": "entropy over sub-environments (×10)",
    f"{INCONSISTENCY}variance": "inconsistency score, C_e",
    f"{INCONSISTENCY}hessian": "inconsistency score, Hessian",
}
_DOMAINS = "accuracy in the sub-environments"


@dataclass(frozen=True)
class PaperNumber:
    """A mean and deviation as the paper prints them."""

    mean: float
    std: float


def paper_benchmark(campaign: str) -> str | None:
    """Return the paper's benchmark that a campaign is a variant of; None if it is not one.

    >>> paper_benchmark("eicu-synthetic"), paper_benchmark("color-digits")
    ('eicu', None)
    """
    return next((name for name in BENCHMARKS if campaign == name or campaign.startswith(f"{name}-")), None)


def on_the_papers_data(campaign: str) -> bool:
    """Return whether a campaign has the paper's data, so that their numbers can be compared.

    >>> on_the_papers_data("eicu"), on_the_papers_data("eicu-demo")
    (True, False)
    """
    return paper_benchmark(campaign) is not None and campaign not in _OTHER_DATA


def paper_numbers(benchmark: str | None, metric: str) -> dict[str, PaperNumber]:
    """Return the paper's numbers for one of our metrics, by algorithm; empty if it prints none.

    >>> paper_numbers("color-mnist", "test_loss")["fishr-inter-geo"]
    PaperNumber(mean=0.542, std=0.006)
    >>> paper_numbers("color-mnist", "test_auroc")
    {}
    """
    tables, factor = _tables(), paper_factor(metric)
    found: dict[str, Any] = {}
    if metric in _TABLES:
        found = tables[_TABLES[metric]].get(benchmark, {})
    elif benchmark == "rotated-cifar10" and metric in _FAIRNESS:
        found = tables["fairness_rotated_cifar10"][_FAIRNESS[metric]]
    elif benchmark == "rotated-cifar10" and metric.startswith(DOMAIN_ACCURACY):
        rows = {degrees: row for row, degrees in tables["sub_environment_rotation"].items()}
        row = rows.get(metric.rsplit(" ", 1)[1], "")
        found = tables["sub_environment_accuracy_rotated_cifar10"].get(row, {})
    return {name: PaperNumber(n["mean"] / factor, n["std"] / factor) for name, n in found.items()}


def paper_factor(metric: str) -> float:
    """Return the factor by which the paper multiplies a metric before it prints it.

    >>> paper_factor("domain_fairness_variance"), paper_factor("test_loss")
    (1000.0, 1.0)
    """
    return next((factor for end, factor in _FACTORS.items() if metric.endswith(end)), 1.0)


def in_paper_order(names: Iterable[str]) -> list[str]:
    """Return the paper's algorithms in the order of its tables, then the others in their given order.

    >>> in_paper_order(["mine", "geometric", "fedsgd"])
    ['fedsgd', 'geometric', 'mine']
    """
    given = list(names)
    return [name for name in ORDER if name in given] + [name for name in given if name not in ORDER]


@cache
def _tables() -> dict[str, Any]:
    text = (files("fedilc.paper") / "paper_tables.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables


def our_cell(campaign: Campaign, algorithm: str, criterion: str, metric: str, scale: float = 1.0) -> Cell:
    """Return one algorithm's mean over seeds; the text says so if not every seed has the number."""
    values = list(campaign.values(algorithm, criterion, metric).values())
    return mean_cell(values, scale, len(campaign.numbers.get(algorithm, {}).get(criterion, {})))


def paper_cell(number: PaperNumber | None, scale: float = 1.0) -> Cell:
    """Return the paper's mean and deviation.

    >>> paper_cell(PaperNumber(0.542, 0.006)).text
    '0.542±0.006'
    """
    return NOTHING if number is None else spread_cell(scale * number.mean, scale * number.std)


def distance_cell(values: Sequence[float], number: PaperNumber | None, lower: bool) -> Cell:
    """Return the difference of our mean to the paper's, in its deviations; with ! if ours is much worse.

    >>> distance_cell([0.572], PaperNumber(0.566, 0.009), True).text
    '+0.7'
    >>> distance_cell([0.600], PaperNumber(0.566, 0.009), True).text
    '+3.8!'
    """
    if number is None or not values:
        return NOTHING
    count = (spread(values)[0] - number.mean) / number.std
    reading = "within two" if abs(count) <= FAR else "better" if (count < 0) == lower else "worse"
    shown = f"{round(count, 1) + 0.0:+.1f}"  # + 0.0 turns -0.0 into 0.0
    return Cell(shown + "!" * (reading == "worse"), parts=(f"{count:.3f}", reading))


@dataclass(frozen=True)
class Claim:
    """The claim that one algorithm, the winner, beats its rivals on a metric."""

    metric: str
    winner: str
    rivals: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class Judgement:
    """The result of a claim's test under one criterion.

    Attributes:
        verdict: "yes" or "no" if p < 0.05 after Holm's correction; "yes, uncorrected" or "no, uncorrected" if
            only before it; "within noise"; "yes?" or "no?" below three seeds; "-" if not run.
        p: p-value of this claim's test alone; None if untested.
        corrected: p-value after Holm's correction over all tests of the table.
        means_only: whether only means were compared, because there are too few seeds for a test.
    """

    verdict: str
    p: float | None = None
    corrected: float | None = None
    means_only: bool = False


def _beats(winner: str, rival: str, metric: str = "test_loss") -> Claim:
    return Claim(metric, winner, (rival,), f"{winner} beats {rival}")


def _best(winner: str, metric: str, but: str | None = None) -> Claim:
    rivals = tuple(name for name in ORDER if name not in (winner, but))
    return Claim(metric, winner, rivals, f"{winner} beats all others" + (f" but {but}" if but else ""))


_PROPOSED = tuple(_beats(proposed, old) for proposed in (_INTER, _INTRA) for old in ("fedsgd", "fedcurv"))
# Section 4: both methods lower the score, since the geometric mean does, and since Fishr does.
SECTION_4 = tuple(
    Claim(f"{INCONSISTENCY}{curvature}", winner, ("fedsgd",), f"{winner} lowers that of fedsgd")
    for curvature in ("variance", "hessian")
    for winner in (_INTER, _INTRA, "geometric", "fedcurv")
)
CLAIMS: dict[str, tuple[Claim, ...]] = {
    "color-mnist": (
        _best(_INTER, "test_loss"),
        *_PROPOSED,
        _beats(_INTRA, "fishr-intra-arith"),
        _beats("fishr-intra-arith", "fedsgd"),
        _beats("fedcurv", "fedsgd"),
        _beats("geometric", "fedsgd"),
        _best(_INTER, "test_accuracy"),
        _best(_INTER, "test_thresholded_auroc"),
        _best(_INTER, "test_thresholded_auprc"),
    ),
    "rotated-cifar10": (
        _best(_INTRA, "test_loss"),
        *_PROPOSED,
        _beats(_INTRA, "fishr-intra-arith"),
        _beats("fedcurv", "fedsgd"),
        _best(_INTRA, "test_accuracy"),
        _beats(_INTER, "fedsgd", "domain_fairness_variance"),
        _beats(_INTRA, "fedsgd", "domain_fairness_variance"),
        _beats(_INTER, "fedsgd", "domain_fairness_entropy"),
        _beats(_INTRA, "fedsgd", "domain_fairness_entropy"),
    ),
    "eicu": (
        _best(_INTRA, "test_loss", but="geometric"),
        *_PROPOSED,
        _beats("geometric", "fedsgd"),
        _best(_INTER, "test_thresholded_auroc"),
        _best(_INTRA, "test_thresholded_auprc"),
    ),
}


def claims_table(campaign: Campaign, notes: Sequence[str]) -> TableData | None:
    """Return the table of the paper's claims on this benchmark and their tests; None if it makes none."""
    benchmark = paper_benchmark(campaign.name)
    if benchmark is None:
        return None
    claims = claims_of(campaign)
    judged = judge(campaign, claims)
    rows = [_row(campaign, benchmark, claim, [judged[claim, c] for c in CRITERIA]) for claim in claims]
    if campaign.domains and benchmark == "rotated-cifar10":
        rows.append(_domains_row(campaign, benchmark))
    headings = words("metric", "the paper's claim", "its numbers", "ours (oracle)")
    answers = [Column(name, (name, f"{name}, p", f"{name}, p by Holm"), words=True) for name in CRITERIA]
    tests = len({(key[0], _values(campaign, *key)) for key, one in judged.items() if one.p is not None})
    title = f"{campaign.heading}: what the paper says, and whether it is found here"
    notes = (*notes, *_notes(tests, judged.values()))
    return TableData.of("claims", campaign.name, title, (*headings, *answers), rows, notes, grouped=True)


def _notes(tests: int, judged: Iterable[Judgement]) -> list[str]:
    notes = [
        "Numbers: the winner's mean, then the mean of the best of those it should beat; of the inconsistency "
        "score, which is measured at the last round only, those of the last round."
    ]
    if tests:
        notes.append(
            "Under each criterion: yes if the winner is better than each of those that were run, no if one "
            "is better than it, by the paired t-test over seeds; in brackets its p, corrected by Holm's "
            f"method for the {tests} different tests of this table. yes and no: that is below {LEVEL:g}. "
            f"'uncorrected' means that p is below {LEVEL:g} only before the correction; 'within noise' means "
            "neither."
        )
    if any(one.means_only for one in judged):
        notes.append(
            f"Below {FEWEST_SEEDS} seeds nothing is tested: yes? and no? only say whose mean is better."
        )
    return notes


def claims_of(campaign: Campaign) -> tuple[Claim, ...]:
    """Return the paper's claims on a campaign's benchmark; those of section 4 if it has the scores."""
    claims = CLAIMS.get(paper_benchmark(campaign.name) or "", ())
    scored = (claim for claim in SECTION_4 if campaign.values(claim.winner, "last", claim.metric))
    return (*claims, *scored)


def judge(campaign: Campaign, claims: Sequence[Claim]) -> dict[tuple[Claim, str], Judgement]:
    """Return the result of each claim under each criterion, corrected for the number of tests.

    Criteria that choose the same rounds make the same test, which counts once.
    """
    alone = {(claim, name): _alone(campaign, claim, name) for claim in claims for name in CRITERIA}
    keys = {key: (key[0], _values(campaign, *key)) for key, one in alone.items() if one.p is not None}
    distinct = {keys[key]: alone[key].p or 0.0 for key in keys}
    corrected = dict(zip(distinct, holm(list(distinct.values())), strict=True))
    return {key: _corrected(one, corrected[keys[key]]) if key in keys else one for key, one in alone.items()}


def _alone(campaign: Campaign, claim: Claim, criterion: str) -> Judgement:
    """Judge one claim without a correction for the other claims.

    The winner must beat every rival, so the claim's p is the highest p of those tests. If rivals are ahead,
    the p of the opposite is the lowest p among them, times the number of rivals.
    """
    ours = campaign.values(claim.winner, criterion, claim.metric)
    rivals = _ranked(campaign, claim, criterion)
    tests = [compare(campaign, claim.winner, rival, claim.metric, criterion) for rival in rivals]
    if not ours or not rivals:
        return Judgement("-")
    p_values = [test.t_p for test in tests if test and test.t_p is not None]
    if len(p_values) < len(tests):
        mean, rival = spread(list(ours.values()))[0], next(iter(rivals.values()))
        ahead = mean != rival and (mean < rival) == lower_is_better(claim.metric)
        return Judgement("yes?" if ahead else "no?", means_only=True)
    sign = 1 if lower_is_better(claim.metric) else -1
    behind = [test.t_p or 0.0 for test in tests if test and sign * test.difference >= 0]
    if behind:
        return Judgement("no", min(1.0, len(tests) * min(behind)))
    return Judgement("yes", max(p_values))


def _corrected(one: Judgement, corrected: float) -> Judgement:
    verdict = "within noise"
    if one.p is not None and one.p < LEVEL:
        verdict = one.verdict if corrected < LEVEL else f"{one.verdict}, uncorrected"
    return Judgement(verdict, one.p, corrected)


def _values(campaign: Campaign, claim: Claim, criterion: str) -> tuple[tuple[float, ...], ...]:
    names = (claim.winner, *claim.rivals)
    return tuple(tuple(campaign.values(name, criterion, claim.metric).values()) for name in names)


def _row(campaign: Campaign, benchmark: str, claim: Claim, judged: Sequence[Judgement]) -> tuple[object, ...]:
    factor = paper_factor(claim.metric)
    paper = {name: number.mean for name, number in paper_numbers(benchmark, claim.metric).items()}
    rivals = _sorted({name: paper[name] for name in claim.rivals if name in paper}, claim.metric)
    measured = "last" if claim.metric.startswith(INCONSISTENCY) else "oracle"
    winner = _means(campaign, [claim.winner], measured, claim.metric).get(claim.winner)
    theirs = _pair(paper.get(claim.winner), rivals, factor)
    ours = _pair(winner, _ranked(campaign, claim, measured), factor)
    return _TITLES[claim.metric], claim.sentence, theirs, ours, *map(_answer, judged)


def _answer(one: Judgement) -> Cell:
    if one.p is None:
        return Cell(one.verdict, parts=(one.verdict,))
    digits = f"{one.p:.4g}", f"{one.corrected:.4g}"
    return Cell(f"{one.verdict} ({p_text(one.corrected)})", parts=(one.verdict, *digits))


def _pair(winner: float | None, rivals: dict[str, float], factor: float) -> str:
    """Return the winner's mean and the best rival's."""
    if winner is None or not rivals:
        return "-"
    return f"{factor * winner:.3f}, {factor * next(iter(rivals.values())):.3f}"


def _ranked(campaign: Campaign, claim: Claim, criterion: str) -> dict[str, float]:
    """Return the means of the rivals that were run, the best first."""
    return _sorted(_means(campaign, claim.rivals, criterion, claim.metric), claim.metric)


def _means(campaign: Campaign, names: Sequence[str], criterion: str, metric: str) -> dict[str, float]:
    values = {name: list(campaign.values(name, criterion, metric).values()) for name in names}
    return {name: spread(seeds)[0] for name, seeds in values.items() if seeds}


def _sorted(means: dict[str, float], metric: str) -> dict[str, float]:
    return dict(sorted(means.items(), key=lambda item: item[1], reverse=not lower_is_better(metric)))


def _domains_row(campaign: Campaign, benchmark: str) -> tuple[object, ...]:
    """Return the row that counts the sub-environments in which fishr-intra-geo is best; it has no test."""
    papers = [paper_numbers(benchmark, metric) for metric in campaign.domains]
    theirs = sum(max(row, key=lambda name: row[name].mean) == _INTRA for row in papers if row)
    led = {criterion: _domains_led(campaign, criterion, list(papers[0])) for criterion in CRITERIA}
    total = len(campaign.domains)
    verdicts = ("-" if count is None else "yes?" if 2 * count > total else "no?" for count in led.values())
    ours = "-" if led["oracle"] is None else f"{led['oracle']} of {total}"
    answers = (Cell(word, parts=(word,)) for word in verdicts)
    return _DOMAINS, f"{_INTRA} is the best in most", f"{theirs} of {total}", ours, *answers


def _domains_led(campaign: Campaign, criterion: str, names: Sequence[str]) -> int | None:
    """Return how often it leads the algorithms of the paper's table; None without a rival or without it."""
    domains = [_means(campaign, names, criterion, metric) for metric in campaign.domains]
    if any(_INTRA not in means or len(means) < 2 for means in domains):
        return None
    return sum(max(means, key=lambda name: means[name]) == _INTRA for means in domains)
