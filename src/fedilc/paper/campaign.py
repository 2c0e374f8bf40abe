"""A campaign: the histories of several algorithms over several seeds, and their means over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations
from typing import Any

from fedilc.evaluation.inconsistency import ScoresByCurvature
from fedilc.evaluation.metrics import lower_is_better
from fedilc.evaluation.selection import CRITERIA, PAPER_WARM_UP, Record, selections
from fedilc.evaluation.significance import PairedTest, paired_test, spread

Summary = dict[str, dict[str, dict[str, dict[str, Any]]]]
BySeed = Mapping[int, Mapping[str, float]]

METRICS = (
    "round",
    "test_loss",
    "test_accuracy",
    "test_auroc",
    "test_auprc",
    "test_thresholded_auroc",
    "test_thresholded_auprc",
    "validation_loss",
    "validation_accuracy",
)
DOMAIN_ACCURACY = "domain_accuracy: "


@dataclass(frozen=True)
class Campaign:
    """The histories of several algorithms over several seeds on one of the paper's benchmarks.

    Rounds are chosen as in the paper: the oracle skips the first `PAPER_WARM_UP` of them.

    Args:
        name: the benchmark, such as "color-mnist" or "eicu-synthetic".
        histories: one record per round, by algorithm and seed. A seed gives every algorithm the same data
            and initial weights, so that seeds can be paired.
        note: one line on the size of the campaign, shown with every table and picture.
        synthetic: whether the data are synthetic; every table and picture then says so.
        fishr_reduction: how the runs reduce the Fishr loss over silos; the benchmarks use the sum, like the
            authors' code.
        chosen: the numbers of the chosen rounds, by algorithm, criterion and seed, if they are not taken from
            the histories: a campaign that is read from its files has all of them here.
        at_last: further numbers of the last round's weights, by algorithm and seed.
    """

    name: str
    histories: Mapping[str, Mapping[int, Sequence[Record]]]
    note: str = ""
    synthetic: bool = False
    fishr_reduction: str = "sum"
    chosen: Mapping[str, Mapping[str, BySeed]] | None = None
    at_last: Mapping[str, BySeed] = field(default_factory=dict)

    @property
    def algorithms(self) -> list[str]:
        """Return the algorithms with at least one round."""
        return [name for name, seeds in self.histories.items() if any(seeds.values())]

    @property
    def heading(self) -> str:
        """Return the benchmark's name, with a warning if its data are synthetic.

        >>> Campaign("eicu-synthetic", {}, synthetic=True).heading
        'eicu-synthetic (SYNTHETIC DATA)'
        """
        return f"{self.name} (SYNTHETIC DATA)" if self.synthetic else self.name

    @property
    def subtitle(self) -> str:
        """Return the note and the Fishr reduction, for pictures.

        >>> Campaign("demo", {}, "5 seeds").subtitle
        '5 seeds; fishr_reduction="sum"'
        """
        return "; ".join(filter(None, (self.note, f'fishr_reduction="{self.fishr_reduction}"')))

    @cached_property
    def numbers(self) -> dict[str, dict[str, dict[int, dict[str, float]]]]:
        """Return the numbers of the chosen rounds, by algorithm, criterion and seed (in order)."""
        numbers: dict[str, dict[str, dict[int, dict[str, float]]]] = {}
        for algorithm in self.algorithms:
            by_criterion = numbers[algorithm] = {criterion: {} for criterion in CRITERIA}
            if self.chosen is not None:
                for criterion, seeds in self.chosen[algorithm].items():
                    by_criterion[criterion] = {seed: dict(found) for seed, found in seeds.items()}
            else:
                for seed, history in sorted(self.histories[algorithm].items()):
                    for criterion, record in selections(history, warm_up=PAPER_WARM_UP).items():
                        by_criterion[criterion][seed] = measurements(record)
        for algorithm, by_seed in self.at_last.items():
            for seed, more in by_seed.items():
                numbers[algorithm]["last"].setdefault(seed, {}).update(more)
        return numbers

    def values(self, algorithm: str, criterion: str, metric: str) -> dict[int, float]:
        """Return one metric by seed, for the seeds that have it.

        >>> rounds = [{"round": 1, "test_loss": 0.5}, {"round": 2, "test_loss": 0.7}]
        >>> Campaign("demo", {"fedsgd": {0: rounds}}).values("fedsgd", "last", "test_loss")
        {0: 0.7}
        """
        seeds = self.numbers.get(algorithm, {}).get(criterion, {})
        return {seed: found[metric] for seed, found in seeds.items() if metric in found}

    @property
    def domains(self) -> list[str]:
        """Return the metrics that are accuracies of sub-domains, in the order of the records."""
        by_seed = [seeds for criteria in self.numbers.values() for seeds in criteria.values()]
        metrics = dict.fromkeys(key for seeds in by_seed for numbers in seeds.values() for key in numbers)
        return [metric for metric in metrics if metric.startswith(DOMAIN_ACCURACY)]


def measurements(record: Record) -> dict[str, float]:
    """Return the numbers of a record that a summary has, under flat names; None and NaN are left out.

    >>> measurements({"round": 3, "test_loss": None, "fairness": {"variance": 0.5, "worst_silo": "a"}})
    {'round': 3.0, 'fairness_variance': 0.5}
    """
    found = {key: record.get(key) for key in METRICS}
    for group in ("fairness", "domain_fairness"):
        found |= {f"{group}_{key}": (record.get(group) or {}).get(key) for key in ("variance", "entropy")}
    for silo, numbers in (record.get("silos") or {}).items():
        for domain, measured in numbers.get("validation_domains", {}).items():
            found[f"{DOMAIN_ACCURACY}{silo} {domain}"] = measured.get("accuracy")
    return {key: float(value) for key, value in found.items() if value is not None and math.isfinite(value)}


def summarise(campaign: Campaign) -> Summary:
    """Return mean, sample deviation and the values in the order of the seeds, per metric.

    The shape is {algorithm: {criterion: {metric: {"mean", "std", "seeds"}}}}, with None for a seed that does
    not have the metric. Criteria that cannot choose a round, and metrics that no seed has, are left out.

    >>> rounds = [{"round": 1, "test_loss": 0.5}]
    >>> summarise(Campaign("demo", {"fedsgd": {0: rounds}}))["fedsgd"]["last"]["test_loss"]
    {'mean': 0.5, 'std': 0.0, 'seeds': [0.5]}
    """
    return {
        algorithm: {
            criterion: _metrics([seeds.get(seed, {}) for seed in sorted(campaign.histories[algorithm])])
            for criterion, seeds in criteria.items()
            if seeds
        }
        for algorithm, criteria in campaign.numbers.items()
    }


def _metrics(seeds: list[dict[str, float]]) -> dict[str, dict[str, Any]]:
    found = {}
    for metric in dict.fromkeys(key for numbers in seeds for key in numbers):
        values = [numbers.get(metric) for numbers in seeds]
        mean, std = spread([value for value in values if value is not None])
        found[metric] = {"mean": mean, "std": std, "seeds": values}
    return found


def same_choices(campaign: Campaign) -> list[tuple[str, str]]:
    """Return the pairs of criteria that choose the same round in every run, which makes them one test.

    >>> run = [{"round": 1, "validation_loss": 0.5}, {"round": 2, "validation_loss": 0.4}]
    >>> same_choices(Campaign("demo", {"fedsgd": {0: run}}))
    [('validation', 'last')]
    """
    rounds = {
        criterion: {name: campaign.values(name, criterion, "round") for name in campaign.algorithms}
        for criterion in CRITERIA
    }
    return [
        (one, other)
        for one, other in combinations(CRITERIA, 2)
        if any(rounds[one].values()) and rounds[one] == rounds[other]
    ]


def unequal_runs(campaign: Campaign) -> str | None:
    """Return a sentence on runs that are shorter or have fewer seeds than others, or None if all are alike.

    >>> one, two = [{"round": 1}], [{"round": 1}, {"round": 2}]
    >>> unequal_runs(Campaign("demo", {"fedsgd": {0: two}, "fedcurv": {0: one, 1: two}}))
    'The runs are of unequal size: fedsgd 1 seed, 2 rounds; fedcurv 2 seeds, 1 to 2 rounds.'
    """
    lengths = {
        name: [history[-1]["round"] for history in campaign.histories[name].values() if history]
        for name in campaign.algorithms
    }
    if len({len(rounds) for rounds in lengths.values()}) <= 1 and len(set(chain(*lengths.values()))) <= 1:
        return None
    sizes = [
        f"{name} {len(rounds)} seed{'s' * (len(rounds) > 1)}, "
        f"{min(rounds)}{f' to {max(rounds)}' if max(rounds) > min(rounds) else ''} rounds"
        for name, rounds in lengths.items()
    ]
    return f"The runs are of unequal size: {'; '.join(sizes)}."


def compare(
    campaign: Campaign, algorithm: str, reference: str, metric: str, criterion: str
) -> PairedTest | None:
    """Test one algorithm of a campaign against another over their common seeds; return None without any."""
    ours = campaign.values(algorithm, criterion, metric)
    theirs = campaign.values(reference, criterion, metric)
    common = [seed for seed in ours if seed in theirs]
    if not common:
        return None
    return paired_test(
        [ours[seed] for seed in common],
        [theirs[seed] for seed in common],
        lower_is_better=lower_is_better(metric),
    )


def with_scores(campaign: Campaign, scores: ScoresByCurvature) -> Campaign:
    """Return the campaign with each seed's inconsistency scores among the numbers of its last round."""
    at_last: dict[str, dict[int, dict[str, float]]] = {}
    for curvature, by_algorithm in scores.items():
        for algorithm, found in by_algorithm.items():
            for seed, metrics in found.metrics(curvature).items():
                at_last.setdefault(algorithm, {}).setdefault(seed, {}).update(metrics)
    return replace(campaign, at_last=at_last)
