"""Paired tests of the difference between two methods over seeds or sites, their power, and comparisons."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedilc.errors import ConfigError
from fedilc.evaluation.calibration import Floats
from fedilc.evaluation.intervals import Interval, interval_of

LEVEL = 0.05
POWER = 0.8
FEWEST_SEEDS = 3
_MOST_EXACT = 20
_ROUNDING = 1e-12


@dataclass(frozen=True)
class PairedTest:
    """The difference of one algorithm from another over the seeds that both have.

    Attributes:
        seeds: the number of pairs.
        difference: the mean of value minus reference.
        t_p: two-sided p of the paired t-test; None below three pairs. If all differences are equal, they have
            no deviation and the t-test is undefined: then it is p of the sign-flip test.
        flip_p: two-sided p of the exact sign-flip test; None below three pairs and above 20.
        verdict: "better" or "worse" if t_p < 0.05, else "within noise"; "not tested" below three pairs. The
            t-test decides, because flip_p of n pairs is never below 2 / 2^n: 0.0625 for the paper's five
            seeds, whatever the difference.
    """

    seeds: int
    difference: float
    t_p: float | None
    flip_p: float | None
    verdict: str


def paired_test(
    values: Sequence[float], reference: Sequence[float], *, lower_is_better: bool = True
) -> PairedTest:
    """Test `values` against `reference`, the same seeds in the same order.

    >>> test = paired_test([0.50, 0.52, 0.51, 0.50, 0.53], [0.56, 0.57, 0.55, 0.56, 0.58])
    >>> test.verdict, test.flip_p
    ('better', 0.0625)
    >>> paired_test([0.5], [0.6]).verdict
    'not tested'
    """
    if len(values) != len(reference) or not len(values):
        raise ConfigError(
            f"a paired test was given {len(values)} values and {len(reference)} to compare them with; "
            "give one of each for every seed"
        )
    ours, theirs = np.asarray(values, float), np.asarray(reference, float)
    differences = ours - theirs
    # Values that are equal in exact arithmetic may differ by rounding, which is no difference.
    differences[np.abs(differences) <= _ROUNDING * np.maximum(np.abs(ours), np.abs(theirs))] = 0.0
    mean = float(differences.mean())
    if len(differences) < FEWEST_SEEDS:
        return PairedTest(len(differences), mean, None, None, "not tested")
    t_p = _t_test(differences, float(np.abs([ours, theirs]).max()))
    flip_p = sign_flip_p(differences) if len(differences) <= _MOST_EXACT else None
    verdict = "within noise"
    if t_p < LEVEL:
        verdict = "better" if (mean < 0) == lower_is_better else "worse"
    return PairedTest(len(differences), mean, t_p, flip_p, verdict)


def sign_flip_p(differences: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the share of all 2^n sign changes of the differences whose sum is at least as far from zero.

    If two algorithms differ by chance only, each seed's difference could as well have the other sign; the
    test assumes nothing else.

    >>> sign_flip_p([1.0, 2.0, 3.0])
    0.25
    """
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate((sums + difference, sums - difference))
    slack = _ROUNDING * float(np.abs(differences).sum())
    return float(np.mean(np.abs(sums) >= abs(float(np.sum(differences))) - slack))


def smallest_flip_p(seeds: int) -> float:
    """Return the lowest p that a sign-flip test of this many pairs can have: that of equal differences.

    >>> smallest_flip_p(5)
    0.0625
    """
    return 2.0 / 2.0**seeds


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number by Holm's method: the k-th smallest of n is multiplied by n - k + 1.

    The chance that any test rejects a true null hypothesis at some level is then at most that level, even if
    the tests depend on each other.

    >>> holm([0.01, 0.04, 0.02])
    [0.03, 0.04, 0.04]
    """
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def _t_test(differences: NDArray[np.float64], scale: float) -> float:
    """Return p of the paired t-test, or of the sign-flip test if all differences are equal but for rounding.

    Scores of few values, such as the accuracy at small sites, are often equal by chance at every site. Their
    deviation is then 0, and p = 0 would call that beyond doubt.
    """
    if np.ptp(differences) <= _ROUNDING * scale:
        return smallest_flip_p(len(differences)) if differences.any() else 1.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, 0.0).pvalue)


def p_phrase(p: float) -> str:
    """Return a p-value for a sentence.

    >>> p_phrase(0.0312), p_phrase(4e-6)
    ('p = 0.031', 'p < 0.001')
    """
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"


def power_of(effect: float, pairs: int, level: float = LEVEL) -> float:
    """Return the chance that a two-sided paired t-test finds a difference of `effect` standard deviations.

    >>> round(power_of(0.5, 34), 3)
    0.808
    """
    from scipy.stats import nct, t

    limit = t.ppf(1 - level / 2, pairs - 1)
    shift = effect * np.sqrt(pairs)
    wrong_side = np.nan_to_num(nct.cdf(-limit, pairs - 1, shift))  # far in this tail, scipy has no number
    return float(nct.sf(limit, pairs - 1, shift) + wrong_side)


def detectable_effect(pairs: int, level: float = LEVEL, power: float = POWER) -> float:
    """Return the difference, in standard deviations of the pairs' differences, that is found with this power.

    >>> round(detectable_effect(4), 2), round(detectable_effect(20), 2)
    (2.13, 0.66)
    """
    from scipy.optimize import brentq

    high = 1.0
    while power_of(high, pairs, level) < power:
        high *= 2
    return float(brentq(lambda effect: power_of(effect, pairs, level) - power, 0.0, high))


def detectable_difference(
    differences: Sequence[float], level: float = LEVEL, power: float = POWER
) -> float | None:
    """Return the smallest mean difference that the paired t-test over these pairs finds with this power.

    The deviation of the pairs' differences is taken from the data; None below three pairs, and if all are
    equal, which says nothing about how far others would vary. Give the level after correction for many
    comparisons (level / comparisons) if it is corrected.
    """
    if len(differences) < FEWEST_SEEDS:
        return None
    if np.ptp(differences) <= _ROUNDING * np.abs(differences).max():
        return None
    return detectable_effect(len(differences), level, power) * float(np.std(differences, ddof=1))


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample deviation (the sum of squares divided by n - 1; 0 for one value).

    The paper does not say which deviation it prints; divided by n, ours would be smaller by a factor of
    sqrt((n - 1) / n), about 11 % for five seeds.

    >>> spread([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


# By site, a method's score and then that of each resample, as `resampled` gives them, averaged over seeds.
BySite = Mapping[str, Floats]


@dataclass(frozen=True)
class Comparison:
    """How a method differs from the one that it is compared with, in one score.

    Attributes:
        difference: the mean over sites of method minus reference, with its interval over examples.
        by_site: the same at each site.
        t_p: of the paired t-test over sites (of the sign-flip test if the sites' differences are all equal);
            None below three sites.
        flip_p: of the exact sign-flip test over sites; None below three sites and above 20.
        corrected_p: t_p after Holm's correction for all methods compared.
        detectable: the smallest mean difference that the t-test would find with 80 % power, at the level of
            Holm's first step; None below three sites, and if their differences are all equal.
        detectable_here: the same for a test at exactly these sites, in which only the examples are resampled.
        verdict: "better", "worse", "not established" or "not tested" (below three sites).
    """

    difference: Interval
    by_site: Mapping[str, Interval]
    t_p: float | None
    flip_p: float | None
    corrected_p: float | None
    detectable: float | None
    detectable_here: float | None
    verdict: str


def mean_over_sites(by_site: BySite) -> Floats:
    """Return the mean score over sites, each counting equally; a resample without one at a site has none."""
    found: Floats = np.mean(list(by_site.values()), axis=0)
    return found


def compare_methods(
    methods: Mapping[str, BySite], reference: str, *, higher_is_better: bool, level: float = LEVEL
) -> dict[str, Comparison]:
    """Compare every other method with the reference over the sites, corrected for being many."""
    others = [name for name in methods if name != reference]
    strictest = level / max(1, len(others))
    found = {}
    for name in others:
        found[name] = _compare(methods[name], methods[reference], strictest)
    tested = [name for name in others if found[name].t_p is not None]
    p_values = [p for name in tested if (p := found[name].t_p) is not None]
    for name, corrected in zip(tested, holm(p_values), strict=True):
        value = found[name].difference.value
        better = value is not None and (value > 0) == higher_is_better
        verdict = ("better" if better else "worse") if corrected < level else "not established"
        found[name] = replace(found[name], corrected_p=corrected, verdict=verdict)
    return found


def _compare(ours: BySite, reference: BySite, level: float) -> Comparison:
    differences = {site: ours[site] - reference[site] for site in ours}
    mean = mean_over_sites(differences)
    here = [float(values[0]) for values in differences.values()]
    test = paired_test([float(ours[site][0]) for site in ours], [float(reference[site][0]) for site in ours])
    drawn = mean[1:][np.isfinite(mean[1:])]
    normal = NormalDist()
    distance = normal.inv_cdf(1 - level / 2) + normal.inv_cdf(POWER)
    return Comparison(
        difference=interval_of(mean),
        by_site={site: interval_of(values) for site, values in differences.items()},
        t_p=test.t_p,
        flip_p=test.flip_p,
        corrected_p=None,
        detectable=detectable_difference(here, level),
        detectable_here=distance * float(drawn.std(ddof=1)) if len(drawn) > 1 else None,
        verdict="not tested",
    )
