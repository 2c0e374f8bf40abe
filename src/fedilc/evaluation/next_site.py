"""What to expect of a score, or of a difference of methods, at the next site: random effects over sites.

Scores of held-out sites are not independent: any two models share all but one of their training sites, and
each site that is scored has trained the models of the others. Nadeau and Bengio take the correlation of such
scores as n_test / (n_test + n_train), which is 1 / (1 + m) with m training sites. A correlation rho adds
rho / (1 - rho) of a score's variance to that of the mean: the squared standard error of a mean over k sites
is multiplied by 1 + k / m (`significance.overlap_factor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedilc.errors import ConfigError
from fedilc.evaluation.calibration import Floats
from fedilc.evaluation.estimates import IDENTITY, SCALES, Estimate
from fedilc.evaluation.significance import overlap_factor

LEVEL = 0.95
FEWEST = 3
_GRID = 1000  # points of the integral over tau
_SCANNED = 60  # places at which the restricted likelihood is looked at for maxima
_ROUNDING = 1e-15  # a variance below this share of the largest one is 0 but for rounding


@dataclass(frozen=True)
class RandomEffects:
    """The mean over sites, their spread, and the prediction interval for the next one, on the scale of y.

    Attributes:
        sites: how many.
        mean: of the sites.
        se: its standard error by Hartung and Knapp.
        low: the lower limit of the mean.
        high: its upper limit.
        tau: the standard deviation between sites.
        i2: the share of the variance that is between sites, 0 to 1.
        next_low: the lower limit for the next site.
        next_high: its upper limit.
    """

    sites: int
    mean: float
    se: float
    low: float
    high: float
    tau: float
    i2: float
    next_low: float
    next_high: float


def random_effects(y: Sequence[float], v: Sequence[float], level: float = LEVEL) -> RandomEffects:
    """Return the random-effects summary of at least three sites' estimates and variances.

    A variance of 0, exactly or but for rounding (two models that rank all examples of a site alike), is no
    knowledge that a set of finite size can give; it counts as the smallest of the others.

    >>> found = random_effects([0.53, 0.75, 0.96, 0.80, 0.90], [0.068, 0.011, 0.020, 0.0025, 0.0025])
    >>> round(found.mean, 3), round(found.tau, 3), round(found.next_low, 3), round(found.next_high, 3)
    (0.838, 0.039, 0.663, 1.014)
    """
    from scipy.stats import t

    values, variances = _checked(y, v)
    k = len(values)
    tau2 = _reml(values, variances)
    weights = _weights(variances, tau2)
    mean = float(weights @ values / weights.sum())
    se = float(np.sqrt(weights @ (values - mean) ** 2 / (k - 1) / weights.sum()))
    tail = (1 + level) / 2
    reach, further = t.ppf(tail, k - 1) * se, t.ppf(tail, k - 2) * np.sqrt(tau2 + se**2)
    return RandomEffects(
        sites=k,
        mean=mean,
        se=se,
        low=float(mean - reach),
        high=float(mean + reach),
        tau=float(np.sqrt(tau2)),
        i2=_share_between(variances, tau2),
        next_low=float(mean - further),
        next_high=float(mean + further),
    )


def next_integrated(
    y: Sequence[float],
    v: Sequence[float],
    prior: tuple[float, float] | None = None,
    level: float = LEVEL,
    training: int | None = None,
) -> tuple[float, float]:
    """Return the limits for the next site, integrated over what tau may be in the light of the data.

    They are quantiles of a posterior predictive distribution: a mixture over tau of normal distributions
    around the weighted mean, of variance tau^2 + f / sum of weights, with f = 1 + k / m if models are trained
    on m of the sites. The mean has a flat prior.

    Without a prior of its own, tau has Jeffreys', tau sqrt(sum of 1 / (v + tau^2)^2). If sites are measured
    without error, it gives the exact interval of a normal sample, by Student's t with k - 1 degrees.

    Args:
        y: the sites' estimates, at least three.
        v: their variances.
        prior: mean and standard deviation of tau's normal prior, truncated at 0; None is Jeffreys'.
        level: the share of next sites inside the limits.
        training: m; None if the sites took no part in training.

    >>> low, high = next_integrated([1.2, 1.4, 1.3], [0.01, 0.02, 0.01], (0.3, 0.08))
    >>> round(low, 2), round(high, 2)
    (0.63, 1.96)
    """
    return _integrated(y, v, prior, level, training)[1]


Limits = tuple[float, float]


def _integrated(
    y: Sequence[float], v: Sequence[float], prior: Limits | None, level: float, training: int | None
) -> tuple[Limits, Limits]:
    """Return the limits of the mean over sites, and those for the next site."""
    values, variances = _checked(y, v)
    if prior is None and not variances.any() and not np.ptp(values):
        same = float(values[0]), float(values[0])
        return same, same
    # The half line of tau as 0 < share < 1; a density of tau is multiplied by d tau / d share.
    share = (np.arange(_GRID) + 0.5) / _GRID
    scale = prior[0] if prior is not None else float(np.sqrt(values.var() + np.median(variances)))
    tau = scale * share / (1 - share)
    weights = 1 / (variances + tau[:, None] ** 2)
    total = weights.sum(1)
    means = weights @ values / total
    misfit = (weights * (values - means[:, None]) ** 2).sum(1)
    log = 0.5 * (np.log(weights).sum(1) - np.log(total) - misfit) - 2 * np.log1p(-share)
    if prior is None:
        log += np.log(tau) + 0.5 * np.log((weights**2).sum(1))
    else:
        log -= 0.5 * ((tau - prior[0]) / prior[1]) ** 2
    posterior = np.exp(log - log.max())
    posterior /= posterior.sum()
    of_mean = _overlap(len(values), training) / total
    return (
        _quantiles(posterior, means, np.sqrt(of_mean), level),
        _quantiles(posterior, means, np.sqrt(tau**2 + of_mean), level),
    )


def _quantiles(shares: Floats, means: Floats, spread: Floats, level: float) -> Limits:
    """Return the limits of a mixture of normal distributions."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    far = float(shares @ spread)

    def limit(below: float) -> float:
        def over(x: float) -> float:
            return float(shares @ ndtr((x - means) / spread)) - below

        reach = far
        while over(means[0] - reach) > 0 or over(means[0] + reach) < 0:
            reach *= 2
        return float(brentq(over, means[0] - reach, means[0] + reach, xtol=1e-10))

    return limit((1 - level) / 2), limit((1 + level) / 2)


def _overlap(sites: int, training: int | None) -> float:
    """Return by what the variance of a mean over sites is multiplied for models that share training sites."""
    return 1.0 if training is None else sites * overlap_factor(sites, training)


def _checked(y: Sequence[float], v: Sequence[float]) -> tuple[Floats, Floats]:
    values, variances = np.asarray(y, float), np.asarray(v, float)
    if len(values) != len(variances) or len(values) < FEWEST:
        raise ConfigError(
            f"random effects were given {len(values)} estimates and {len(variances)} variances; give one "
            f"of each for at least {FEWEST} sites"
        )
    if not np.isfinite([values, variances]).all() or (variances < 0).any():
        raise ConfigError("random effects were given a number that is not finite, or a negative variance")
    known = variances > _ROUNDING * variances.max()
    return values, np.where(known, variances, variances[known].min() if known.any() else 0.0)


def _weights(variances: Floats, tau2: float) -> Floats:
    """Return the weights of the sites; equal ones if nothing is uncertain and all agree."""
    total = variances + tau2
    return 1 / total if (total > 0).all() else np.ones_like(total)


def _reml(values: Floats, variances: Floats) -> float:
    """Return the variance between sites of highest restricted likelihood, which may have several maxima."""
    from scipy.optimize import brentq

    if not variances.any():
        return float(values.var(ddof=1))

    def slope(tau2: float) -> float:
        weights = 1 / (variances + tau2)
        total = weights.sum()
        centred = values - weights @ values / total
        return float((weights * centred) @ (weights * centred) - total + (weights @ weights) / total)

    def likelihood(tau2: float) -> float:
        weights = 1 / (variances + tau2)
        total = weights.sum()
        centred = values - weights @ values / total
        return float(np.log(weights).sum() - np.log(total) - weights @ centred**2)

    most = float(np.ptp(values) ** 2 + variances.max())
    while slope(most) > 0:
        most *= 2
    scanned = np.append(0.0, np.geomspace(1e-9 * most, most, _SCANNED))
    slopes = [slope(tau2) for tau2 in scanned]
    maxima = [0.0] if slopes[0] <= 0 else []
    for low, high, rising, falling in zip(scanned, scanned[1:], slopes, slopes[1:], strict=False):
        if rising > 0 >= falling:
            maxima.append(float(brentq(slope, low, high, xtol=1e-16, rtol=1e-14)))
    return max(maxima, key=likelihood)


def _share_between(variances: Floats, tau2: float) -> float:
    if not variances.any():
        return 1.0 if tau2 > 0 else 0.0
    weights = variances.min() / variances  # at most 1, so that products do not overflow
    # The sum of products of two sites: total**2 - weights @ weights would be 0 if one site had all weight.
    pairs = weights[1:] @ np.cumsum(weights)[:-1]
    typical = variances.min() * (len(variances) - 1) * weights.sum() / (2 * pairs)
    return float(tau2 / (tau2 + typical))


PRIOR_TAU, PRIOR_SD = 0.055, 0.015
# Near 1 sites cannot differ by a tau of .055: on the logit scale it would be 5.6 at a mean of .99, and a site
# with an AUROC below .01 would not be unusual. So tau is converted at a mean of .9 at most (.1 at least).
_FARTHEST = 0.9
MOST_WITH_PRIOR = 4


def empirical_prior(mean: float) -> Limits:
    """Return mean and standard deviation of the empirical prior of tau on the logit scale, at a mean AUROC.

    >>> [round(empirical_prior(mean)[0], 3) for mean in (0.75, 0.9, 0.99)]
    [0.293, 0.611, 0.611]
    """
    slope = SCALES["auroc"].slope(min(max(mean, 1 - _FARTHEST), _FARTHEST))
    return PRIOR_TAU * slope, PRIOR_SD * slope


@dataclass(frozen=True)
class NextSite:
    """What to expect at the next site, on the score's own scale but for `tau`; None if it cannot be said.

    Attributes:
        sites: at how many sites the score is estimable.
        mean: over sites like these, by random effects.
        mean_low: the lower 95 % limit of the mean, integrated over tau like the headline.
        mean_high: its upper limit.
        hk_low: the lower limit of the mean by Hartung and Knapp alone.
        hk_high: its upper limit.
        tau: the standard deviation between sites, on the scale of the analysis (logit for an AUROC).
        i2: the share of the variance between the sites' scores that their sizes do not explain, 0 to 1.
        low: the lower limit for the next site, by the interval that is the headline.
        high: its upper limit.
        headline: how tau's uncertainty is taken into account there: an "empirical" or "Jeffreys" prior.
        reml_low: the lower limit for the next site by REML alone.
        reml_high: its upper limit.
        jeffreys_low: the lower limit for the next site with Jeffreys' prior, from these sites alone.
        jeffreys_high: its upper limit.
        prior_low: the lower limit for the next site with the empirical prior; AUROC only.
        prior_high: its upper limit.
        reason: why there is no interval.
    """

    sites: int
    mean: float | None = None
    mean_low: float | None = None
    mean_high: float | None = None
    hk_low: float | None = None
    hk_high: float | None = None
    tau: float | None = None
    i2: float | None = None
    low: float | None = None
    high: float | None = None
    headline: Literal["empirical", "Jeffreys"] | None = None
    reml_low: float | None = None
    reml_high: float | None = None
    jeffreys_low: float | None = None
    jeffreys_high: float | None = None
    prior_low: float | None = None
    prior_high: float | None = None
    reason: str | None = None


def next_site(
    found: Sequence[Estimate], score: str | None = None, training: int | None = None, level: float = LEVEL
) -> NextSite:
    """Return what to expect at the next site.

    Args:
        found: the estimates of the held-out sites at which the score is estimable.
        score: whose estimates they are, on its scale in `estimates.SCALES`; None is a difference of methods.
        training: how many of the sites each model was trained on; None if it is one model, and none of them.
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

    def own(*ends: float) -> Limits:
        low, high = sorted(map(scale.back, ends))
        return low, high

    mean = scale.back(effects.mean)
    hartung_knapp, reml = own(effects.low, effects.high), own(effects.next_low, effects.next_high)
    alone = [own(*ends) for ends in _integrated(y, v, None, level, training)]
    with_prior = None
    if score == "auroc":
        prior = empirical_prior(mean)
        with_prior = [own(*ends) for ends in _integrated(y, v, prior, level, training)]
    empirical = with_prior is not None and len(found) <= MOST_WITH_PRIOR
    mean_limits, headline = with_prior if with_prior is not None and empirical else alone
    prior_limits = (None, None) if with_prior is None else with_prior[1]
    return NextSite(
        sites=len(found),
        mean=mean,
        mean_low=mean_limits[0],
        mean_high=mean_limits[1],
        hk_low=hartung_knapp[0],
        hk_high=hartung_knapp[1],
        tau=effects.tau,
        i2=effects.i2,
        low=headline[0],
        high=headline[1],
        headline="empirical" if empirical else "Jeffreys",
        reml_low=reml[0],
        reml_high=reml[1],
        jeffreys_low=alone[1][0],
        jeffreys_high=alone[1][1],
        prior_low=prior_limits[0],
        prior_high=prior_limits[1],
    )
