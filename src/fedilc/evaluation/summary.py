"""A campaign: every algorithm over every seed, and what it comes to."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

from fedilc.errors import ConfigError
from fedilc.evaluation.selection import CRITERIA, PAPER_WARM_UP, Record, select

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
INCONSISTENCY = "inconsistency_"
_FAIRNESS = ("variance", "entropy")
HISTORY = (
    "train_loss",
    "validation_loss",
    "validation_accuracy",
    "test_loss",
    "test_accuracy",
    "test_auroc",
    "test_auprc",
)


@dataclass(frozen=True)
class Campaign:
    """The histories of several algorithms over several seeds on one of the paper's benchmarks.

    Rounds are chosen as in the paper: the oracle skips the first `PAPER_WARM_UP` of them.

    Args:
        name: the benchmark, such as "color-mnist" or "eicu-synthetic".
        histories: for each algorithm and seed, one record a round. A seed deals the data and draws
            the first weights alike for every algorithm, so that seeds can be paired.
        note: one line on the size of the campaign, shown with every table and picture.
        synthetic: whether the data were made up, which every table and picture then says.
        fishr_reduction: how the runs reduce the Fishr loss over silos; the benchmarks' files have the sum,
            as the authors' code does.
        chosen: what was measured at the chosen rounds, by algorithm, criterion and seed, if it is not to be
            taken from the histories: a campaign that is read back from its files has all of it here.
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
        """Those with at least one round."""
        return [name for name, seeds in self.histories.items() if any(seeds.values())]

    @property
    def heading(self) -> str:
        """The benchmark's name, with a warning where its data are not real.

        >>> Campaign("eicu-synthetic", {}, synthetic=True).heading
        'eicu-synthetic (SYNTHETIC DATA)'
        """
        return f"{self.name} (SYNTHETIC DATA)" if self.synthetic else self.name

    @property
    def subtitle(self) -> str:
        """The note and the Fishr reduction, for pictures.

        >>> Campaign("demo", {}, "5 seeds").subtitle
        '5 seeds; fishr_reduction="sum"'
        """
        return "; ".join(filter(None, (self.note, f'fishr_reduction="{self.fishr_reduction}"')))

    @cached_property
    def numbers(self) -> dict[str, dict[str, dict[int, dict[str, float]]]]:
        """What was measured at the chosen round, by algorithm, criterion and seed (in order)."""
        found = {
            algorithm: {criterion: self._at(algorithm, criterion) for criterion in CRITERIA}
            for algorithm in self.algorithms
        }
        for algorithm, by_seed in self.at_last.items():
            for seed, more in by_seed.items():
                found[algorithm]["last"].setdefault(seed, {}).update(more)
        return found

    def _at(self, algorithm: str, criterion: str) -> dict[int, dict[str, float]]:
        if self.chosen is not None:
            return {seed: dict(one) for seed, one in self.chosen[algorithm].get(criterion, {}).items()}
        found = {}
        for seed, history in sorted(self.histories[algorithm].items()):
            try:
                found[seed] = measurements(select(history, criterion, warm_up=PAPER_WARM_UP))
            except ConfigError:  # this criterion has nothing to choose by
                continue
        return found

    def values(self, algorithm: str, criterion: str, metric: str) -> dict[int, float]:
        """One metric by seed, of the seeds where it was measured; empty where there is none.

        >>> rounds = [{"round": 1, "test_loss": 0.5}, {"round": 2, "test_loss": 0.7}]
        >>> Campaign("demo", {"fedsgd": {0: rounds}}).values("fedsgd", "last", "test_loss")
        {0: 0.7}
        """
        seeds = self.numbers.get(algorithm, {}).get(criterion, {})
        return {seed: found[metric] for seed, found in seeds.items() if metric in found}

    @property
    def domains(self) -> list[str]:
        """The metrics of the sub-environments' accuracies, in the order of the records."""
        found: dict[str, None] = {}
        for criteria in self.numbers.values():
            for seeds in criteria.values():
                for numbers in seeds.values():
                    found |= dict.fromkeys(key for key in numbers if key.startswith(DOMAIN_ACCURACY))
        return list(found)


def measurements(record: Record) -> dict[str, float]:
    """The numbers of a record that a summary reports, under flat names; None and NaN are left out.

    >>> measurements({"round": 3, "test_loss": None, "fairness": {"variance": 0.5, "worst_silo": "a"}})
    {'round': 3.0, 'fairness_variance': 0.5}
    """
    found = {key: record.get(key) for key in METRICS}
    for group in ("fairness", "domain_fairness"):
        found |= {f"{group}_{key}": (record.get(group) or {}).get(key) for key in _FAIRNESS}
    for silo, numbers in (record.get("silos") or {}).items():
        for domain, measured in numbers.get("validation_domains", {}).items():
            found[f"{DOMAIN_ACCURACY}{silo} {domain}"] = measured.get("accuracy")
    return {key: float(value) for key, value in found.items() if value is not None and math.isfinite(value)}


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample deviation (n - 1 below the sum of squares; 0 for one value).

    The paper does not say which deviation it prints; with n below the sum, ours would be smaller by
    sqrt((n - 1) / n), some 11 % for five seeds.

    >>> spread([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def summarise(campaign: Campaign) -> Summary:
    """Return mean, sample deviation and the values in the order of the seeds, of every metric.

    The shape is {algorithm: {criterion: {metric: {"mean", "std", "seeds"}}}}, with None for a seed that does
    not have the metric. A criterion that cannot choose a round, and a metric that no seed has, are left out.

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


def lower_is_better(metric: str) -> bool:
    """Return whether less of it is good: losses, errors, variances, inconsistencies; not areas, entropies.

    >>> lower_is_better("test_loss"), lower_is_better("fairness_entropy")
    (True, False)
    """
    return metric.endswith(("loss", "rmse", "mae", "variance")) or metric.startswith(INCONSISTENCY)


def same_choices(campaign: Campaign) -> list[tuple[str, str]]:
    """Return the pairs of criteria that choose the same round in every run, so that they are one test.

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
    """A sentence on runs that are shorter or have fewer seeds than others, or None where all are alike.

    >>> one, two = [{"round": 1}], [{"round": 1}, {"round": 2}]
    >>> unequal_runs(Campaign("demo", {"fedsgd": {0: two}, "fedcurv": {0: one, 1: two}}))
    'The runs are of unequal size: fedsgd 1 seed, 2 rounds; fedcurv 2 seeds, 1 to 2 rounds.'
    """
    lengths = {
        name: [history[-1]["round"] for history in campaign.histories[name].values() if history]
        for name in campaign.algorithms
    }
    if len({(len(rounds), min(rounds), max(rounds)) for rounds in lengths.values()}) <= 1 and all(
        min(rounds) == max(rounds) for rounds in lengths.values()
    ):
        return None
    sizes = [
        f"{name} {len(rounds)} seed{'s' * (len(rounds) > 1)}, "
        f"{min(rounds)}{f' to {max(rounds)}' if max(rounds) > min(rounds) else ''} rounds"
        for name, rounds in lengths.items()
    ]
    return f"The runs are of unequal size: {'; '.join(sizes)}."


def history_csv(campaign: Campaign) -> str:
    """Every round of every run as CSV, with five significant digits and blanks for what is missing.

    >>> print(history_csv(Campaign("demo", {"fedsgd": {0: [{"round": 1, "train_loss": 1 / 3}]}})))
    algorithm,seed,round,train_loss,validation_loss,validation_accuracy,test_loss,...
    fedsgd,0,1,0.33333,,,,,,
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("algorithm", "seed", "round", *HISTORY))
    writer.writerows(_lines(campaign))
    return text.getvalue()


def _lines(campaign: Campaign) -> Iterator[list[object]]:
    for algorithm, seeds in campaign.histories.items():
        for seed, history in sorted(seeds.items()):
            for record in history:
                numbers = (record.get(key) for key in HISTORY)
                cells = ("" if value is None else f"{value:.5g}" for value in numbers)
                yield [algorithm, seed, record["round"], *cells]
