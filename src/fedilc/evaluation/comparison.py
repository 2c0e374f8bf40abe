"""Compare methods over sites: the difference, its uncertainty, and the smallest one that could be found.

The tests themselves are in `significance.py`.
The unit is the site, because the question is about the next site: seeds are averaged per site first, and the
paired t-test is over the sites' differences. Resamples of the examples (`fedilc.evaluation.intervals`) say
how far the mean difference at exactly these sites could be off; they say nothing about other sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from fedilc.evaluation.calibration import Floats
from fedilc.evaluation.intervals import Interval, interval_of
from fedilc.evaluation.significance import LEVEL, POWER, detectable_difference, holm, paired_test

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
