"""What a study found: scores of each method at each held-out silo, and comparisons between methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedilc.evaluation.estimates import (
    Estimate,
    Support,
    difference,
    estimate,
    limits_support,
    own_estimate,
    support,
)
from fedilc.evaluation.intervals import Interval, mean_interval, score_interval, score_value
from fedilc.evaluation.metrics import HIGHER_IS_BETTER
from fedilc.evaluation.next_site import NextSite, next_site
from fedilc.evaluation.significance import Comparison, compare_methods
from fedilc.progress import counted
from fedilc.studies.study.comparators import CHOSEN, NULL, kind_of
from fedilc.studies.study.plan import Choice, StudyPlan, chosen_method

Outputs = dict[str, dict[str, list[NDArray[Any]]]]  # by site and method, one array of outputs per seed
Agreement = dict[int, dict[str, float]]  # by round and layer


@dataclass(frozen=True)
class StudyResult:
    """What a study found.

    Attributes:
        plan: what was trained.
        choices: by held-out silo and method, the settings chosen on the other silos.
        outputs: by held-out silo and method, the outputs for its examples, per seed.
        scores: by held-out silo, method and score, the mean over seeds on the score's own scale, with its
            influences; NaN if it is not estimable.
        by_seed: by held-out silo, method and score, the value of each seed.
        agreement: by method, round and layer, how far the training silos' signs agree: the mean over the runs
            that got to that round.
    """

    plan: StudyPlan
    choices: dict[str, dict[str, Choice]]
    outputs: Outputs
    scores: dict[str, dict[str, dict[str, Estimate]]]
    by_seed: dict[str, dict[str, dict[str, list[float]]]]
    agreement: dict[str, Agreement]
    _estimates: dict[tuple[str, str, str], Estimate] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        plan: StudyPlan,
        choices: dict[str, dict[str, Choice]],
        outputs: Outputs,
        agreement: dict[str, Agreement],
    ) -> StudyResult:
        """Return the result with all scores."""
        result, loss = cls(plan, choices, outputs, {}, {}, agreement), plan.data.loss
        for site in outputs:
            result.scores[site], result.by_seed[site] = {}, {}
        runs = [(site, method) for site, methods in outputs.items() for method in methods]
        for site, method in counted("scores of models", runs):
            y, patients = plan.data.labels[site], plan.data.patients.get(site)
            per_seed, models = outputs[site][method], plan.models_at([site], method)
            estimated = {
                name: own_estimate(loss, name, y, per_seed, patients, models) for name in plan.metrics
            }
            if method == NULL and "auroc" in estimated:  # a constant has this area in every sample
                estimated["auroc"] = replace(estimated["auroc"], influence=np.zeros(1))
            result.scores[site][method] = estimated
            result.by_seed[site][method] = {
                name: [score_value(loss, name, y, one, models) for one in per_seed]
                if np.isfinite(found.value)
                else [np.nan] * len(per_seed)
                for name, found in estimated.items()
            }
        for site, method in result.chosen.items():
            outputs[site] = {CHOSEN: outputs[site][method], **outputs[site]}
            result.scores[site] = {CHOSEN: result.scores[site][method], **result.scores[site]}
            result.by_seed[site] = {CHOSEN: result.by_seed[site][method], **result.by_seed[site]}
        return result

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Return the federated methods that have a model for every held-out silo."""
        trained = [set(methods) for methods in self.scores.values()]
        return tuple(name for name in self.plan.algorithms if all(name in names for names in trained))

    @property
    def chosen(self) -> dict[str, str]:
        """Return, by held-out silo, the method that was chosen without it; empty if there was one only."""
        if len(self.algorithms) < 2:
            return {}
        plain = self.plan.regression
        return {site: chosen_method(found, self.algorithms, plain) for site, found in self.choices.items()}

    @property
    def headline(self) -> str:
        """Return the method whose scores answer the question: the chosen procedure, or the only method."""
        found = all(CHOSEN in methods for methods in self.scores.values())
        return CHOSEN if found else self.plan.reference

    def against(self, other: str, metric: str) -> Comparison | None:
        """Return how the headline differs from another method over the sites at which both have the score.

        None if there is no such site. There are no p-values: the interval says what can be said.
        """
        sites = self.sites_of(other, metric)
        if not sites:
            return None
        names = (self.headline, other)
        found = compare_methods(
            {name: {site: self.scores[site][name][metric] for site in sites} for name in names},
            other,
            training=len(self.plan.data.silos) - 1,
            higher_is_better=metric in HIGHER_IS_BETTER,
            tested=False,
        )
        return found[self.headline]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the names of the scores; the first one decides."""
        return self.plan.metrics

    def sites_with(self, metric: str) -> list[str]:
        """Return the held-out silos at which every algorithm has this score."""
        names = self.algorithms
        return [
            site
            for site, methods in self.scores.items()
            if all(np.isfinite(methods[name][metric].value) for name in names)
        ]

    def support(self, site: str, metric: str) -> Support:
        """Return what a score rests on at a held-out silo."""
        data = self.plan.data
        return support(data.loss, data.labels[site], metric, data.patients.get(site))

    def interval(self, site: str, method: str, metric: str) -> Interval:
        """Return a method's score at a held-out silo with its interval over examples."""
        if method not in self.scores[site] or not np.isfinite(self.scores[site][method][metric].value):
            return Interval(None, None, None, reason=self.support(site, metric).reason)
        data = self.plan.data
        y, patients = data.labels[site], data.patients.get(site)
        models = self.plan.models_at([site], method)
        found = score_interval(data.loss, metric, y, self.outputs[site][method], patients, models)
        return _without_limits(found, method, metric)

    def sites_of(self, method: str, metric: str) -> list[str]:
        """Return those of `sites_with` at which this method has the score; a small site has no own model."""
        found = [site for site in self.sites_with(metric) if method in self.scores[site]]
        return [site for site in found if np.isfinite(self.scores[site][method][metric].value)]

    def mean(self, method: str, metric: str) -> Interval:
        """Return a method's mean over the sites at which it has this score."""
        sites = self.sites_of(method, metric)
        if not sites:
            known = all(self.support(site, metric).reason for site in self.scores)
            return Interval(None, None, None, reason="at no held-out site" if known else None)
        found = mean_interval([self.scores[site][method][metric] for site in sites], metric)
        return _without_limits(found, method, metric)

    def estimates(self, method: str, metric: str, *, own_scale: bool = False) -> dict[str, Estimate]:
        """Return a method's score at each held-out silo as an estimate with its variance, if it has one."""
        found = {}
        for site, methods in self.outputs.items():
            y, patients = self.plan.data.labels[site], self.plan.data.patients.get(site)
            if (method, metric) == (NULL, "auroc"):
                if own_scale and self.support(site, metric).reason is None:
                    drawn = len(y) if patients is None else len(np.unique(patients))
                    found[site] = Estimate(0.5, np.zeros(drawn))
            elif method in methods and (one := self._estimate(site, method, metric, own_scale)):
                found[site] = one
        return found

    def _estimate(self, site: str, method: str, metric: str, own_scale: bool) -> Estimate | None:
        """Return one estimate; it is made once, since several tables are made from it.

        On the scale of the analysis nothing is subtracted from it, so that its influences are kept as their
        sum of squares alone: those of 100,000 examples, many methods and scores would fill the memory.
        """
        data, given = self.plan.data, self.outputs[site][method]
        y, patients, known = data.labels[site], data.patients.get(site), self.scores[site][method].get(metric)
        models = self.plan.models_at([site], method)
        if own_scale:
            if known is None:
                return estimate(data.loss, metric, y, given, patients, models, own_scale=True)
            limits = limits_support(data.loss, y, metric, patients, models)
            return known if limits.reason is None and np.isfinite(known.value) else None
        key = (site, method, metric)
        if key not in self._estimates:
            one = estimate(data.loss, metric, y, given, patients, models)
            if one is None:
                return None
            self._estimates[key] = replace(one, influence=np.sqrt([one.influence @ one.influence]))
        return self._estimates[key]

    def next_site(self, method: str, metric: str) -> NextSite:
        """Return what to expect of a method's score at the next site."""
        training = None if kind_of(method) == "alone" else len(self.plan.data.silos) - 1
        return next_site(list(self.estimates(method, metric).values()), metric, training)

    def next_difference(self, method: str, metric: str, other: str | None = None) -> NextSite:
        """Return what to expect of a method's difference from another, or the reference, at the next site."""
        ours, theirs = (
            self.estimates(name, metric, own_scale=True) for name in (method, other or self.plan.reference)
        )
        apart = [difference(ours[site], theirs[site]) for site in ours if site in theirs]
        return next_site(apart, None, len(self.plan.data.silos) - 1)

    def comparisons(self, metric: str, *, tested: bool = True) -> dict[str, Comparison]:
        """Return every algorithm compared with the reference; empty if no site has this score.

        `tested` says whether there are p-values, which the deciding score alone may have.
        """
        sites = self.sites_with(metric)
        if not sites:
            return {}
        methods = {
            name: {site: self.scores[site][name][metric] for site in sites} for name in self.algorithms
        }
        return compare_methods(
            methods,
            self.plan.reference,
            training=len(self.plan.data.silos) - 1,
            higher_is_better=metric in HIGHER_IS_BETTER,
            tested=tested,
        )

    def best(self, metric: str) -> str:
        """Return the algorithm with the best mean over sites; the reference if several are equal."""
        names = sorted(self.algorithms, key=lambda name: name != self.plan.reference)
        sign = -1 if metric in HIGHER_IS_BETTER else 1
        values = {name: self.mean(name, metric).value for name in names}
        return min(names, key=lambda name: np.inf if (v := values[name]) is None else sign * v)


def _without_limits(found: Interval, method: str, metric: str) -> Interval:
    """Return the score without limits if it is the AUROC of a constant, which is always 0.5."""
    return replace(found, low=None, high=None) if (method, metric) == (NULL, "auroc") else found


def mean_agreement(records: Iterable[tuple[int, Mapping[str, float] | None]]) -> Agreement:
    """Return how far silos' signs agree by round and layer, the mean over runs that got to that round.

    >>> mean_agreement([(2, {"w": 1.0}), (1, {"w": 0.0}), (2, {"w": 0.5}), (3, None)])
    {1: {'w': 0.0}, 2: {'w': 0.75}}
    """
    found: dict[int, dict[str, list[float]]] = {}
    for number, layers in records:
        for layer, value in (layers or {}).items():
            found.setdefault(number, {}).setdefault(layer, []).append(value)
    return {
        number: {layer: float(np.mean(values)) for layer, values in found[number].items()}
        for number in sorted(found)
    }
