"""What to expect of a score, or of a difference of two methods, at the next site: the rules of the intervals.

    fewer than 3 estimable sites   no interval, and a sentence
    3 or 4 sites                   AUROC: integrated over tau with the empirical prior; others: a flat one
    5 sites or more                integrated over tau with a flat prior

Beside this headline stand the interval by REML alone, mean +- t(k - 2) sqrt(tau^2 + se^2), which is the
usual one and covers too seldom if sites are few, and for the AUROC the one with the empirical prior.
`benchmarks/coverage.py` simulates all three.

The empirical prior: over 1,603 validations of 469 clinical models, the standard deviation between sites was
about .055 on the scale of the AUROC, with a standard deviation of .015 between models (Statistics in
Medicine 2025, doi 10.1002/sim.70011). So tau is normal with these numbers, truncated at 0, and divided by
A(1 - A) at the mean AUROC A to be on the logit scale. There is no such prior for other scores, nor for
differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedilc.evaluation.estimates import IDENTITY, SCALES, Estimate
from fedilc.evaluation.meta_analysis import FEWEST, LEVEL, next_integrated, random_effects

PRIOR_TAU, PRIOR_SD = 0.055, 0.015
MOST_WITH_PRIOR = 4


@dataclass(frozen=True)
class NextSite:
    """What to expect at the next site, on the score's own scale but for `tau`; None if it cannot be said.

    Attributes:
        sites: at how many sites the score is estimable.
        mean: over sites like these, by random effects.
        mean_low: the lower 95 % limit of the mean.
        mean_high: its upper limit.
        tau: the standard deviation between sites, on the scale of the analysis (logit for an AUROC).
        i2: the share of the variance between the sites' scores that their sizes do not explain, 0 to 1.
        low: the lower limit for the next site, by the interval that is the headline.
        high: its upper limit.
        headline: how tau's uncertainty is taken into account there: an "empirical" or a "flat" prior.
        reml_low: the lower limit for the next site by REML alone.
        reml_high: its upper limit.
        prior_low: the lower limit for the next site with the empirical prior; AUROC only.
        prior_high: its upper limit.
        reason: why there is no interval.
    """

    sites: int
    mean: float | None = None
    mean_low: float | None = None
    mean_high: float | None = None
    tau: float | None = None
    i2: float | None = None
    low: float | None = None
    high: float | None = None
    headline: Literal["empirical", "flat"] | None = None
    reml_low: float | None = None
    reml_high: float | None = None
    prior_low: float | None = None
    prior_high: float | None = None
    reason: str | None = None


def next_site(found: Sequence[Estimate], score: str | None = None, level: float = LEVEL) -> NextSite:
    """Return what to expect at the next site.

    Args:
        found: the estimates of the held-out sites at which the score is estimable.
        score: whose estimates they are, on its scale in `estimates.SCALES`; None is a difference of methods.
        level: of the limits.

    >>> import numpy as np
    >>> found = next_site([Estimate(y, np.array([0.2])) for y in (0.9, 1.3, 1.1, 1.2)], "auroc")
    >>> found.headline, round(found.low, 2), round(found.high, 2)
    ('empirical', 0.62, 0.86)
    >>> next_site([], "auroc").reason
    'at least 3 sites with an estimable score are needed, and there is none'
    """
    if len(found) < FEWEST:
        verb = {0: "there is none", 1: "there is 1"}.get(len(found), f"there are {len(found)}")
        reason = f"at least {FEWEST} sites with an estimable score are needed, and {verb}"
        return NextSite(len(found), reason=reason)
    y, v = [one.value for one in found], [one.variance for one in found]
    scale = IDENTITY if score is None else SCALES[score]
    effects = random_effects(y, v, level)

    def own(*ends: float) -> tuple[float, float]:
        low, high = sorted(map(scale.back, ends))
        return low, high

    mean = scale.back(effects.mean)
    mean_limits, reml = own(effects.low, effects.high), own(effects.next_low, effects.next_high)
    prior: tuple[float, float] | tuple[None, None] = (None, None)
    if score == "auroc":
        slope = scale.slope(mean)
        prior = own(*next_integrated(y, v, (PRIOR_TAU * slope, PRIOR_SD * slope), level))
    with_prior = score == "auroc" and len(found) <= MOST_WITH_PRIOR
    headline = prior if with_prior else own(*next_integrated(y, v, None, level))
    return NextSite(
        sites=len(found),
        mean=mean,
        mean_low=mean_limits[0],
        mean_high=mean_limits[1],
        tau=effects.tau,
        i2=effects.i2,
        low=headline[0],
        high=headline[1],
        headline="empirical" if with_prior else "flat",
        reml_low=reml[0],
        reml_high=reml[1],
        prior_low=prior[0],
        prior_high=prior[1],
    )
