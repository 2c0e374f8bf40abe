"""Paired tests of the difference between two methods over seeds, and comparisons of methods over sites."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedilc.errors import ConfigError
from fedilc.evaluation.calibration import Floats
from fedilc.evaluation.estimates import Estimate, difference
from fedilc.evaluation.intervals import Interval, mean_error, mean_interval

LEVEL = 0.05
FEWEST_SEEDS = 3
FEWEST_SITES = 3
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
    differences = _differences(values, reference)
    mean = float(differences.mean())
    if len(differences) < FEWEST_SEEDS:
        return PairedTest(len(differences), mean, None, None, "not tested")
    t_p = _t_test(differences, float(np.abs([*values, *reference]).max()))
    flip_p = sign_flip_p(differences) if len(differences) <= _MOST_EXACT else None
    verdict = "within noise"
    if t_p < LEVEL:
        verdict = "better" if (mean < 0) == lower_is_better else "worse"
    return PairedTest(len(differences), mean, t_p, flip_p, verdict)


def _differences(values: Sequence[float], reference: Sequence[float]) -> Floats:
    """Return values minus reference, exactly 0 if they differ by rounding alone."""
    ours, theirs = np.asarray(values, float), np.asarray(reference, float)
    found: Floats = ours - theirs
    found[np.abs(found) <= _ROUNDING * np.maximum(np.abs(ours), np.abs(theirs))] = 0.0
    return found


def sign_flip_p(differences: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the share of all 2^n sign changes of the differences whose sum is at least as far from zero.

    If two algorithms differ by chance only, each seed's difference could as well have the other sign; the
    test assumes nothing else.

    >>> sign_flip_p([1.0, 2.0, 3.0])
    0.25
    """
    sums = np.zeros(1)
    for one in differences:
        sums = np.concatenate((sums + one, sums - one))
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


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample deviation (the sum of squares divided by n - 1; 0 for one value).

    The paper does not say which deviation it prints; divided by n, ours would be smaller by a factor of
    sqrt((n - 1) / n), about 11 % for five seeds.

    >>> spread([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


BySite = Mapping[str, Estimate]  # a method's score at each site, on its own scale


@dataclass(frozen=True)
class Comparison:
    """How a method differs from the one that it is compared with, in one score.

    Attributes:
        difference: the mean over sites of method minus reference, with its interval over examples.
        by_site: the same at each site.
        over_sites: the same mean with its interval over sites, as `mean_difference` gives it; the intervals
            of all methods compared hold together with 95 %.
        p: of the mean difference over sites; None if it is not tested.
        corrected_p: p after Holm's correction for all methods compared.
        verdict: "better", "worse" or "not established"; "not tested" if p is None.
    """

    difference: Interval
    by_site: Mapping[str, Interval]
    over_sites: Interval
    p: float | None
    corrected_p: float | None
    verdict: str


def overlap_factor(sites: int, training: int) -> float:
    """Return the variance of a mean over held-out sites, in units of the variance between these sites.

    It would be 1 / sites if the sites' scores were independent. But the models for two held-out sites share
    all their training sites but one, so that differences of methods correlate. Nadeau and Bengio (Inference
    for the generalization error, 2003) add the size of the test set divided by that of the training set: with
    one site left out and `training` sites to train on, 1 / training.

    >>> round(overlap_factor(4, 3), 4), round(overlap_factor(20, 19), 4)
    (0.5833, 0.1026)
    """
    return 1 / sites + 1 / training


def mean_difference(
    differences: Sequence[float] | Floats,
    training: int,
    *,
    error: float = 0.0,
    level: float = LEVEL,
    scale: float = 0.0,
) -> tuple[Interval, float | None]:
    """Return the mean over held-out sites with its interval, and the two-sided p of the mean being 0.

    Student's t with one degree less than there are sites; the squared standard error is the variance between
    sites times `overlap_factor`. Few sites may agree by chance, so it is never taken as smaller than `error`.
    Without `error`, equal differences have neither interval nor p, unless all are 0: then p is 1.

    Args:
        differences: one per held-out site, of method minus reference.
        training: how many sites each model was trained on.
        error: the standard error of the mean difference over the examples of these sites.
        level: the share of intervals that may miss the mean.
        scale: the size of the scores, to tell differences of equal size from rounding.

    >>> found, p = mean_difference([0.01, 0.03, 0.02, 0.04], training=3)
    >>> print(found, round(p, 3))
    0.025 [-0.006, 0.056] 0.085
    >>> mean_difference([0.1, 0.1, 0.1], training=2)[1] is None
    True
    """
    from scipy.stats import t

    values = np.asarray(differences, float)
    mean, degrees = float(values.mean()), len(values) - 1
    unknown = Interval(mean, None, None)
    if len(values) < FEWEST_SITES:
        return unknown, None
    se = max(float(values.std(ddof=1)) * overlap_factor(len(values), training) ** 0.5, error)
    if se <= _ROUNDING * max(scale, np.abs(values).max()):
        return unknown, None if values.any() else 1.0
    reach = float(t.isf(level / 2, degrees)) * se
    return Interval(mean, mean - reach, mean + reach), float(2 * t.sf(abs(mean) / se, degrees))


def compare_methods(
    methods: Mapping[str, BySite],
    reference: str,
    *,
    training: int,
    higher_is_better: bool,
    tested: bool = True,
    level: float = LEVEL,
    apart: Mapping[str, BySite] | None = None,
) -> dict[str, Comparison]:
    """Compare every other method with the reference over the sites, corrected for being many.

    Args:
        methods: by method and site, its score.
        reference: the method that the others are compared with.
        training: how many sites each model was trained on.
        higher_is_better: whether a higher score is better.
        tested: whether there are p-values: for one score that was named before, and no other.
        level: of all tests together.
        apart: by method and site, its difference from the reference; None computes it from influences.
    """
    others = [name for name in methods if name != reference]
    found = {}
    for name in others:
        ours, theirs = methods[name], methods[reference]
        own = {site: difference(ours[site], theirs[site]) for site in ours} if apart is None else apart[name]
        found[name] = _compare(ours, theirs, own, training, level / len(others))
    if not tested:
        return {name: replace(one, p=None) for name, one in found.items()}
    p_values = {name: one.p for name, one in found.items() if one.p is not None}
    for name, corrected in zip(p_values, holm(list(p_values.values())), strict=True):
        better = ((found[name].over_sites.value or 0.0) > 0) == higher_is_better
        verdict = ("better" if better else "worse") if corrected < level else "not established"
        found[name] = replace(found[name], corrected_p=corrected, verdict=verdict)
    return found


def _compare(ours: BySite, reference: BySite, apart: BySite, training: int, level: float) -> Comparison:
    values, theirs = ([of[site].value for site in ours] for of in (ours, reference))
    over_sites, p = mean_difference(
        _differences(values, theirs),
        training,
        error=mean_error(list(apart.values())),
        level=level,
        scale=float(np.abs([values, theirs]).max()),
    )
    by_site = {site: mean_interval([one]) for site, one in apart.items()}
    return Comparison(mean_interval(list(apart.values())), by_site, over_sites, p, None, "not tested")
