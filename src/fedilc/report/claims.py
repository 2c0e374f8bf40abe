"""What the paper says about the order of the algorithms, and whether a campaign finds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedilc.evaluation import CRITERIA
from fedilc.evaluation.significance import FEWEST_SEEDS, LEVEL, compare
from fedilc.evaluation.summary import Campaign, lower_is_better, spread
from fedilc.report.formats import Cell, Column, TableData
from fedilc.report.paper import ORDER, paper_benchmark, paper_numbers

_INTER, _INTRA = "fishr-inter-geo", "fishr-intra-geo"


@dataclass(frozen=True)
class Claim:
    """That one algorithm, the winner, beats its rivals on a metric."""

    metric: str
    winner: str
    rivals: tuple[str, ...]
    sentence: str


# What a metric is called here, and what the paper multiplies it by.
_METRICS = {
    "test_loss": ("OOD loss", 1.0),
    "test_accuracy": ("OOD accuracy", 1.0),
    "test_thresholded_auroc": ("OOD AUCROC†", 1.0),
    "test_thresholded_auprc": ("OOD AUCPR†", 1.0),
    "domain_fairness_variance": ("variance over sub-environments (×1000)", 1000.0),
    "domain_fairness_entropy": ("entropy over sub-environments (×10)", 10.0),
}
_DOMAINS = "accuracy in the sub-environments"


def _beats(winner: str, rival: str, metric: str = "test_loss") -> Claim:
    return Claim(metric, winner, (rival,), f"{winner} beats {rival}")


def _best(winner: str, metric: str, but: str | None = None) -> Claim:
    rivals = tuple(name for name in ORDER if name not in (winner, but))
    return Claim(metric, winner, rivals, f"{winner} beats all others" + (f" but {but}" if but else ""))


_PROPOSED = tuple(_beats(proposed, old) for proposed in (_INTER, _INTRA) for old in ("fedsgd", "fedcurv"))

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
    """The paper's claims on this benchmark and what the campaign says; None where it makes none."""
    benchmark = paper_benchmark(campaign.name)
    if benchmark is None:
        return None
    rows = [_row(campaign, benchmark, claim) for claim in CLAIMS[benchmark]]
    if campaign.domains and benchmark == "rotated-cifar10":
        rows.append(_domains_row(campaign, benchmark))
    headings = ("metric", "the paper's claim", "its numbers", "ours (oracle)")
    return TableData(
        name="claims",
        source=campaign.name,
        title=f"{campaign.heading}: what the paper says, and whether it is found here",
        columns=tuple(Column(heading, words=True) for heading in (*headings, *CRITERIA)),
        rows=tuple(rows),
        notes=(
            *notes,
            "Numbers: the winner's mean, then the mean of the best of those it should beat. Under each "
            "criterion: yes where it is better than each of those that were run, no where one is better than "
            f"it, both by the paired t-test over seeds at p < {LEVEL:g}; else within noise. Below "
            f"{FEWEST_SEEDS} seeds nothing is tested: yes? and no? only say whose mean is better.",
        ),
        grouped=True,
    )


def found(campaign: Campaign, claim: Claim, criterion: str) -> str:
    """Whether a campaign finds a claim: yes, no, within noise; yes? or no? untested; or - if not run."""
    ours = campaign.values(claim.winner, criterion, claim.metric)
    rivals = _ranked(campaign, claim, criterion)
    if not ours or not rivals:
        return "-"
    tests = [compare(campaign, claim.winner, rival, claim.metric, criterion) for rival in rivals]
    verdicts = {test.verdict if test else "not tested" for test in tests}
    if "not tested" in verdicts:
        mean, rival = spread(list(ours.values()))[0], next(iter(rivals.values()))
        return "yes?" if mean != rival and (mean < rival) == lower_is_better(claim.metric) else "no?"
    return "no" if "worse" in verdicts else "within noise" if "within noise" in verdicts else "yes"


def _row(campaign: Campaign, benchmark: str, claim: Claim) -> tuple[Cell, ...]:
    title, scale = _METRICS[claim.metric]
    paper = {name: number.mean for name, number in paper_numbers(benchmark, claim.metric).items()}
    rivals = _sorted({name: paper[name] for name in claim.rivals}, claim.metric)
    ours = list(campaign.values(claim.winner, "oracle", claim.metric).values())
    winner = spread(ours)[0] if ours else None
    return (
        Cell(title),
        Cell(claim.sentence),
        Cell(_pair(paper[claim.winner], rivals, scale)),
        Cell(_pair(winner, _ranked(campaign, claim, "oracle"), scale)),
        *(Cell(found(campaign, claim, criterion)) for criterion in CRITERIA),
    )


def _pair(winner: float | None, rivals: dict[str, float], scale: float) -> str:
    """The winner's mean and the best rival's."""
    if winner is None or not rivals:
        return "-"
    return f"{scale * winner:.3f}, {scale * next(iter(rivals.values())):.3f}"


def _ranked(campaign: Campaign, claim: Claim, criterion: str) -> dict[str, float]:
    """The means of the rivals that were run, the best first."""
    values = {name: campaign.values(name, criterion, claim.metric).values() for name in claim.rivals}
    return _sorted({name: spread(list(found))[0] for name, found in values.items() if found}, claim.metric)


def _sorted(means: dict[str, float], metric: str) -> dict[str, float]:
    return dict(sorted(means.items(), key=lambda item: item[1], reverse=not lower_is_better(metric)))


def _domains_row(campaign: Campaign, benchmark: str) -> tuple[Cell, ...]:
    """In how many sub-environments fishr-intra-geo is the best; a count, without a test."""
    papers = [paper_numbers(benchmark, metric) for metric in campaign.domains]
    theirs = sum(max(row, key=lambda name: row[name].mean) == _INTRA for row in papers if row)
    led = {criterion: _domains_led(campaign, criterion, list(papers[0])) for criterion in CRITERIA}
    total = len(campaign.domains)
    words = ("-" if count is None else "yes?" if 2 * count > total else "no?" for count in led.values())
    return (
        Cell(_DOMAINS),
        Cell(f"{_INTRA} is the best in most"),
        Cell(f"{theirs} of {total}"),
        Cell("-" if led["oracle"] is None else f"{led['oracle']} of {total}"),
        *map(Cell, words),
    )


def _domains_led(campaign: Campaign, criterion: str, names: Sequence[str]) -> int | None:
    """How often it leads those of the paper's table that were run; None where nothing can be counted."""
    led = 0
    for metric in campaign.domains:
        values = {name: list(campaign.values(name, criterion, metric).values()) for name in names}
        means = {name: spread(found)[0] for name, found in values.items() if found}
        if _INTRA not in means or len(means) < 2:
            return None
        led += max(means, key=lambda name: means[name]) == _INTRA
    return led
