"""What a study found: scores of each method at each held-out silo, and comparisons between methods.

All of it is computed from one document per held-out silo (`site_scores.py`), wherever its rows are.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedilc.algorithms.loss_registry import task_of
from fedilc.evaluation.estimates import NO_FLOORS, Estimate, Floors
from fedilc.evaluation.intervals import Interval, mean_interval
from fedilc.evaluation.metrics import HIGHER_IS_BETTER
from fedilc.evaluation.next_site import NextSite, next_site
from fedilc.evaluation.significance import Comparison, compare_methods
from fedilc.progress import counted
from fedilc.studies.study.choice import Choice, chosen_method
from fedilc.studies.study.comparators import CHOSEN, NULL, kind_of
from fedilc.studies.study.description import descriptions
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.scoring import asked_by, rows_of, score_site
from fedilc.studies.study.site_scores import Score, SiteDescription, SiteScores, Told

Outputs = dict[str, dict[str, list[NDArray[Any]]]]  # by site and method, one array of outputs per seed
ALL_SITES = "all held-out sites"
Agreement = dict[int, dict[str, float]]  # by round and layer


@dataclass(frozen=True)
class StudyResult:
    """What a study found.

    Attributes:
        plan: what was trained.
        choices: by held-out silo and method, the settings chosen on the other silos.
        sites: by held-out silo, what it says of its scores.
        agreement: by method, round and layer, how far the training silos' signs agree: the mean over the runs
            that got to that round.
        chosen: by held-out silo, the method that was chosen without it; empty if there was one only.
        outputs: by held-out silo and method, the outputs for its examples, per seed; None if they stayed at
            the silos.
        silos: who is at each silo, if that was asked.
        together: all held-out silos as if they were one; None if there is one, or if rows are elsewhere.
    """

    plan: StudyPlan
    choices: dict[str, dict[str, Choice]]
    sites: dict[str, SiteScores]
    agreement: dict[str, Agreement]
    chosen: dict[str, str] = field(default_factory=dict)
    outputs: Outputs | None = field(default=None, repr=False, compare=False)
    together: SiteScores | None = None
    silos: dict[str, SiteDescription] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        plan: StudyPlan,
        choices: dict[str, dict[str, Choice]],
        outputs: Outputs,
        agreement: dict[str, Agreement],
        floors: Floors = NO_FLOORS,
        beside: StudyResult | None = None,
    ) -> StudyResult:
        """Return the result if the rows of all silos are here.

        `beside` is the result of another study of the same examples, with which methods are compared.
        """
        asked, sites = asked_by(plan), {}
        silos = descriptions(plan.data, floors)
        chosen = chosen_methods(plan, choices, outputs)
        for site in counted("held-out sites", list(outputs)):
            first = chosen.get(site, plan.reference)
            rows = rows_of(plan, (site,), outputs[site], (first, plan.reference))
            rows = replace(rows, description=silos[site])
            if beside is not None and beside.outputs is not None:
                names = {CHOSEN: chosen[site]} if chosen else {}
                names |= {method: method for method in outputs[site]}
                given = beside.outputs[site]
                pairs = {name: (own, given.get(beside.named(site, name))) for name, own in names.items()}
                rows = replace(
                    rows, beside={k: (own, of) for k, (own, of) in pairs.items() if of is not None}
                )
            sites[site] = score_site(rows, asked, floors)
        shown = {site: ({CHOSEN: of[chosen[site]]} if chosen else {}) | of for site, of in outputs.items()}
        together = None
        if len(shown) > 1:
            every = together_at(shown)
            first = CHOSEN if CHOSEN in every else plan.reference
            drawn = (first, plan.reference) if task_of(plan.data.loss) == "binary" else ()
            rows = rows_of(plan, list(shown), every, drawn, ALL_SITES)
            together = score_site(rows, replace(asked, metrics=(), alike=False), floors)
        return cls(plan, choices, sites, agreement, chosen, shown, together, silos)

    @cached_property
    def algorithms(self) -> tuple[str, ...]:
        """Return the federated methods that have a model for every held-out silo."""
        return trained_at_all(self.plan, {site: one.methods for site, one in self.sites.items()})

    @cached_property
    def described(self) -> dict[str, SiteDescription]:
        """Return who is at each silo that tells it."""
        found = {site: one.description for site, one in self.sites.items() if one.description is not None}
        return {**found, **self.silos}

    @cached_property
    def scores(self) -> dict[str, dict[str, dict[str, Score]]]:
        """Return by held-out silo, method and name the scores; the chosen procedure is the first method."""
        found = {}
        for site, one in self.sites.items():
            of = {method: scored.scores for method, scored in one.methods.items()}
            found[site] = ({CHOSEN: of[self.chosen[site]]} if site in self.chosen else {}) | of
        return found

    def named(self, site: str, method: str) -> str:
        """Return the method that a document calls so: the chosen procedure is another one at each silo."""
        return self.chosen.get(site, method) if method == CHOSEN else method

    def score(self, site: str, method: str, metric: str) -> Score | None:
        """Return a method's score at a held-out silo; None if it has no model there."""
        return self.scores[site].get(method, {}).get(metric)

    def estimate(self, site: str, method: str, metric: str) -> Estimate | None:
        """Return a method's score at a held-out silo on its own scale; None if it is not estimable."""
        found = self.score(site, method, metric)
        return None if found is None else found.estimate

    @property
    def headline(self) -> str:
        """Return the method whose scores answer the question: the chosen procedure, or the only method."""
        found = all(site in self.chosen for site in self.sites)
        return CHOSEN if found else self.plan.reference

    def against(self, other: str, metric: str) -> Comparison | None:
        """Return how the headline differs from another method over the sites at which both have the score.

        None if there is no such site. There are no p-values: the interval says what can be said.
        """
        sites = self.sites_of(other, metric)
        if not sites:
            return None
        return self._compared((self.headline,), other, metric, sites, tested=False)[self.headline]

    def comparisons(self, metric: str, *, tested: bool = True) -> dict[str, Comparison]:
        """Return every algorithm compared with the reference; empty if no site has this score.

        `tested` says whether there are p-values, which the deciding score alone may have.
        """
        sites = self.sites_with(metric)
        if not sites:
            return {}
        others = [name for name in self.algorithms if name != self.plan.reference]
        return self._compared(others, self.plan.reference, metric, sites, tested=tested)

    def _compared(
        self, names: Iterable[str], reference: str, metric: str, sites: list[str], *, tested: bool
    ) -> dict[str, Comparison]:
        """Return methods compared with a reference at sites where all have the score."""
        found = {
            name: {site: one for site in sites if (one := self.estimate(site, name, metric)) is not None}
            for name in (*names, reference)
        }
        apart = {
            name: {
                site: one
                for site in sites
                if (one := self.difference(site, name, reference, metric)) is not None
            }
            for name in names
        }
        return compare_methods(
            found,
            reference,
            training=len(self.plan.data.silos) - 1,
            higher_is_better=metric in HIGHER_IS_BETTER,
            tested=tested,
            apart=apart,
        )

    def difference(self, site: str, ours: str, theirs: str, metric: str) -> Estimate | None:
        """Return the difference of two methods at a held-out silo; None if one of them has no such score."""
        one, other = self.named(site, ours), self.named(site, theirs)
        return self.sites[site].difference(one, other, metric)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the names of the scores; the first one decides."""
        return self.plan.metrics

    def sites_with(self, metric: str) -> list[str]:
        """Return the held-out silos at which every algorithm has this score."""
        return [
            site
            for site in self.sites
            if all(self.estimate(site, name, metric) is not None for name in self.algorithms)
        ]

    def sites_of(self, method: str, metric: str) -> list[str]:
        """Return those of `sites_with` at which this method has the score; a small site has no own model."""
        return [site for site in self.sites_with(metric) if self.estimate(site, method, metric) is not None]

    def interval(self, site: str, method: str, metric: str) -> Interval:
        """Return a method's score at a held-out silo with its interval over examples."""
        found = self.score(site, method, metric)
        if found is None or found.found.value is None:
            return Interval(None, None, None, reason=self.sites[site].reasons[metric])
        return found.found.interval

    def mean(self, method: str, metric: str) -> Interval:
        """Return a method's mean over the sites at which it has this score."""
        sites = self.sites_of(method, metric)
        if not sites:
            known = all(one.reasons[metric] for one in self.sites.values())
            return Interval(None, None, None, reason="at no held-out site" if known else None)
        found = [one for site in sites if (one := self.estimate(site, method, metric)) is not None]
        return _without_limits(mean_interval(found, metric), method, metric)

    def estimates(self, method: str, metric: str) -> dict[str, Estimate]:
        """Return a method's score at each held-out silo on the scale of the analysis, if it has one."""
        found = {site: self.score(site, method, metric) for site in self.sites}
        return {
            site: Estimate.of(*one.analysis)
            for site, one in found.items()
            if one is not None and one.analysis is not None
        }

    def next_site(self, method: str, metric: str) -> NextSite:
        """Return what to expect of a method's score at the next site."""
        training = None if kind_of(method) == "alone" else len(self.plan.data.silos) - 1
        return next_site(list(self.estimates(method, metric).values()), metric, training)

    def next_difference(self, method: str, metric: str, other: str | None = None) -> NextSite:
        """Return what to expect of a method's difference from another, or the reference, at the next site."""
        names = (method, other or self.plan.reference)
        apart = [
            one
            for site in self.sites
            if all((of := self.score(site, name, metric)) is not None and of.comparable for name in names)
            and (one := self.difference(site, *names, metric)) is not None
        ]
        return next_site(apart, None, len(self.plan.data.silos) - 1)

    def told_to(self, site: str, metric: str) -> Told:
        """Return what a held-out site is told of the others; `metric` is the score that decides."""
        plan = self.plan
        values = {
            method: [self.estimate(other, method, metric) for other in self.sites if other != site]
            for method in self.scores[site]
        }
        return Told(
            name=plan.data.name,
            loss=plan.data.loss,
            metric=metric,
            metrics=plan.metrics,
            chosen=self.chosen.get(site),
            reference=plan.reference,
            seeds=plan.settings.seeds,
            thresholds=plan.settings.thresholds,
            subgroups=plan.settings.subgroups,
            others={
                self.named(site, method): tuple(sorted(one.value for one in found if one is not None))
                for method, found in values.items()
                if method != CHOSEN
            },
        )

    def best(self, metric: str) -> str:
        """Return the algorithm with the best mean over sites; the reference if several are equal."""
        names = sorted(self.algorithms, key=lambda name: name != self.plan.reference)
        sign = -1 if metric in HIGHER_IS_BETTER else 1
        values = {name: self.mean(name, metric).value for name in names}
        return min(names, key=lambda name: np.inf if (v := values[name]) is None else sign * v)


def together_at(outputs: Outputs) -> dict[str, list[NDArray[Any]]]:
    """Return the outputs of those methods that predict at every silo, one silo after another, by seed."""
    sites = list(outputs.values())
    common = [method for method in sites[0] if all(method in methods for methods in sites)]
    return {
        method: [np.concatenate(parts) for parts in zip(*(of[method] for of in sites), strict=True)]
        for method in common
    }


def trained_at_all(plan: StudyPlan, methods: Mapping[str, Container[str]]) -> tuple[str, ...]:
    """Return the federated methods that have a model for every held-out silo; `methods` has those by silo."""
    return tuple(name for name in plan.algorithms if all(name in names for names in methods.values()))


def chosen_methods(
    plan: StudyPlan, choices: Mapping[str, Mapping[str, Choice]], methods: Mapping[str, Container[str]]
) -> dict[str, str]:
    """Return, by held-out silo, the method that was chosen without it; empty if there was one only."""
    names = trained_at_all(plan, methods)
    if len(names) < 2:
        return {}
    return {site: chosen_method(found, names, plan.regression) for site, found in choices.items()}


def _without_limits(found: Interval, method: str, metric: str) -> Interval:
    """Return the score without limits if it is the AUROC of a constant, which is always 0.5."""
    return (
        Interval(found.value, None, None, found.reason, found.caution)
        if (method, metric) == (NULL, "auroc")
        else found
    )


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
