"""Random effects over sites: metafor's numbers, slow oracles, and what holds whatever the numbers are."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fedilc.errors import ConfigError
from fedilc.evaluation.next_site import next_integrated, random_effects

# Published tables of validation studies, and what R's metafor gives for them:
# rma(y, v, method="REML", test="knha", control=list(threshold=1e-12, maxiter=10000)).
EUROSCORE_LOGIT_C = (
    [1.44676457855093, 1.87468984855879, 1.450010175506],
    [0.00803625185405368, 0.111493902485701, 0.0582974867155871],
)
EUROSCORE_LOG_OE = (
    [
        *(0.0440599897940305, -0.496436886313891, 0.187211542088146, -0.312246979276064, -0.0818023464745003),
        *(0.228974471625003, 1.58045037556085, 0.346024109392199, -0.154150679827258, -0.249345923708234),
        *(-0.22314355131421, 0.0266682470821613, 0.441832752279039, 0.280301965154158, 0.944461608840852),
        *(-0.479573080261886, -0.0298529631496812, -0.373204245889943, 0.183922838160928, 0.0979804083602038),
        *(0.810930216216329, 0.271933715483642, -0.381208130462604),
    ],
    [
        *(0.00413026198948068, 0.0347405758798164, 0.0234728127097785, 0.00505626206554643),
        *(0.001298359574569, 0.0043878663188704, 0.0270753161077515, 0.00176362494645717),
        *(0.0100392997499107, 0.00433525324629024, 0.122991967871486, 0.0126588927408341),
        *(0.0667989417989418, 0.0212841359182823, 0.0523708421797594, 0.0757005830355464),
        *(0.0281338329060672, 0.00467994426686337, 0.00740119760479042, 0.00317180853927745),
        *(0.107111111111111, 0.0456309760484711, 0.000913939282257274),
    ],
)
FRAMINGHAM_LOGIT_C = (
    [0.532216813747308, 0.750469535492148, 0.959391715971426, 0.804798546869924, 0.895384047054841],
    [0.0675188801802641, 0.0111903300988109, 0.0198057818525641, 0.00252393436218484, 0.00246205450611326],
)
COLLINS_LOG_OR = (
    [
        *(0.041847109935500504, -0.9236708391717777, -1.1221427860783038, -1.4733057381095205),
        *(-1.3910245354952921, -0.29688945116188303, -0.2615499321749329, 1.0887599922250981),
        0.1353053863485858,
    ],
    [
        *(0.159600872716, 0.117736838325, 0.178017718715, 0.298926767677, 0.114285073251),
        *(0.014633677280, 0.120687453529, 0.686371578334, 0.067877284006),
    ],
)
METAFOR = {  # estimate, se, its limits, tau^2, I^2 in percent, the limits for the next site
    "euroscore c": (
        EUROSCORE_LOGIT_C,
        *(1.4726267826, 0.0715583697, 1.1647359680, 1.7805175971, 0.0, 0.0, 0.5633914870, 2.3818620781),
    ),
    "euroscore o:e": (
        EUROSCORE_LOG_OE,
        *(0.1021930123, 0.1001351769, -0.1054746342, 0.3098606589, 0.1974543669, 97.2138035830),
        *(-0.8450737660, 1.0494597906),
    ),
    "framingham": (
        FRAMINGHAM_LOGIT_C,
        *(0.8400873226, 0.0369145989, 0.7375959653, 0.9425786799, 0.0008936349, 11.9830053684),
        *(0.6889186927, 0.9912559526),
    ),
    "collins": (
        COLLINS_LOG_OR,
        *(-0.5181032060, 0.2408393664, -1.0734797807, 0.0372733688, 0.3007941930, 75.9236734829),
        *(-1.9345068033, 0.8983003914),
    ),
}
sites = st.lists(st.tuples(st.floats(-3, 3), st.floats(1e-3, 2.0)), min_size=3, max_size=12).map(
    lambda pairs: tuple(map(list, zip(*pairs, strict=True)))
)


@pytest.mark.parametrize("name", METAFOR)
def test_the_numbers_are_those_of_metafor(name: str) -> None:
    (y, v), *expected = METAFOR[name]
    found = random_effects(y, v)
    ours = (found.mean, found.se, found.low, found.high, found.tau**2, 100 * found.i2)
    assert (*ours, found.next_low, found.next_high) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("name", ["euroscore o:e", "framingham", "collins"])
def test_tau_is_the_maximum_of_the_restricted_likelihood_in_many_digits(name: str) -> None:
    (y, v), *_ = METAFOR[name]
    found = random_effects(y, v).tau ** 2
    with mpmath.workdps(40):

        def likelihood(tau2: mpmath.mpf) -> mpmath.mpf:
            w = [1 / (mpmath.mpf(one) + tau2) for one in v]
            mean = mpmath.fsum(a * b for a, b in zip(w, y, strict=True)) / mpmath.fsum(w)
            misfit = mpmath.fsum(a * (b - mean) ** 2 for a, b in zip(w, y, strict=True))
            return (mpmath.fsum(map(mpmath.log, w)) - mpmath.log(mpmath.fsum(w)) - misfit) / 2

        root = mpmath.findroot(lambda tau2: mpmath.diff(likelihood, tau2), mpmath.mpf(found))
    assert found == pytest.approx(float(root), rel=1e-10)


@settings(max_examples=60, deadline=None)
@given(sites)
def test_no_other_tau_has_a_higher_restricted_likelihood(data: tuple[list[float], list[float]]) -> None:
    y, v = map(np.asarray, data)

    def likelihood(tau2: float) -> float:
        covariance = np.diag(v + tau2)
        inverse = np.linalg.inv(covariance)
        ones = np.ones(len(y))
        information = ones @ inverse @ ones
        rest = y - (ones @ inverse @ y) / information
        return -(np.linalg.slogdet(covariance)[1] + np.log(information) + rest @ inverse @ rest) / 2

    best = likelihood(random_effects(*data).tau ** 2)
    assert all(likelihood(tau2) <= best + 1e-9 for tau2 in [0.0, *np.geomspace(1e-8, 100, 200)])


@settings(max_examples=60, deadline=None)
@given(sites, st.floats(-5, 5), st.floats(0.1, 10))
def test_units_and_the_order_of_sites_do_not_matter(
    data: tuple[list[float], list[float]], shift: float, factor: float
) -> None:
    y, v = map(np.asarray, data)
    order = np.random.default_rng(len(y)).permutation(len(y))
    for function in (
        lambda a, b: (lambda found: (found.next_low, found.next_high))(random_effects(a, b)),
        next_integrated,
    ):
        low, high = function(y, v)
        assert low <= high
        moved = function(y[order] * factor + shift, v[order] * factor**2)
        assert moved == pytest.approx((low * factor + shift, high * factor + shift), abs=1e-5 * factor)


@pytest.mark.parametrize("prior", [None, (0.3, 0.08), (0.05, 0.1)])
@pytest.mark.parametrize(("k", "training"), [(3, None), (4, 3), (9, 12)])
def test_the_integral_over_tau_is_that_of_adaptive_quadrature(
    prior: tuple[float, float] | None, k: int, training: int | None
) -> None:
    overlap = 1 if training is None else 1 + k / training

    random = np.random.default_rng(k)
    y, v = random.normal(1.0, 0.3, k), random.uniform(0.01, 0.1, k)

    def parts(tau: float) -> tuple[float, float, float]:
        w = 1 / (v + tau**2)
        mean = (w @ y) / w.sum()
        weight = np.sqrt(w.prod() / w.sum()) * np.exp(-(w @ (y - mean) ** 2) / 2)
        if prior is None:  # Jeffreys': the root of the information on tau
            weight *= tau * np.sqrt((w**2).sum())
        else:
            weight *= np.exp(-(((tau - prior[0]) / prior[1]) ** 2) / 2)
        return weight, mean, np.sqrt(tau**2 + overlap / w.sum())

    def share(x: float) -> float:
        def over(tau: float) -> float:
            weight, mean, spread = parts(tau)
            return weight * stats.norm.cdf(x, mean, spread)

        first = [integrate.quad(f, 0, 1, epsabs=1e-11, limit=200)[0] for f in (over, lambda t: parts(t)[0])]
        rest = [
            integrate.quad(f, 1, np.inf, epsabs=1e-11, limit=200)[0] for f in (over, lambda t: parts(t)[0])
        ]
        return (first[0] + rest[0]) / (first[1] + rest[1])

    low, high = next_integrated(y, v, prior, training=training)
    assert (share(low), share(high)) == pytest.approx((0.025, 0.975), abs=1e-5)


@pytest.mark.parametrize("k", [3, 5, 20])
def test_sites_measured_without_error_give_students_interval(k: int) -> None:
    """Jeffreys' prior of tau gives the exact prediction interval, also with the variance of shared sites."""
    y = np.random.default_rng(k).normal(size=k)
    for training, of_mean in ((None, 1 / k), (k - 1, 1 / k + 1 / (k - 1))):
        expected = stats.t.interval(0.95, k - 1, y.mean(), y.std(ddof=1) * np.sqrt(1 + of_mean))
        assert next_integrated(y, np.zeros(k), training=training) == pytest.approx(expected, rel=1e-4)
    assert random_effects(y, np.zeros(k)).tau == pytest.approx(y.std(ddof=1))


@pytest.mark.filterwarnings("error")
def test_the_share_between_sites_is_known_if_one_site_has_almost_all_weight() -> None:
    variances = [1e-17, 1e-3, 2e-3, 4e-3]
    found = random_effects([0.0, 0.1, -0.1, 0.2], variances)
    weights = [1 / Fraction(variance) for variance in variances]
    typical = 3 * sum(weights) / (sum(weights) ** 2 - sum(weight**2 for weight in weights))
    assert found.tau > 0
    assert found.i2 == pytest.approx(found.tau**2 / (found.tau**2 + float(typical)), rel=1e-12)


def test_a_variance_of_zero_counts_as_the_smallest_positive_one() -> None:
    y = [0.1, 0.0, 0.3, 0.0]
    assert random_effects(y, [0.02, 0.0, 0.05, 0.0]) == random_effects(y, [0.02, 0.02, 0.05, 0.02])
    same = random_effects([0.5] * 4, [0.0] * 4)
    assert (same.mean, same.tau, same.next_low, same.next_high) == (0.5, 0.0, 0.5, 0.5)
    assert next_integrated([0.5] * 4, [0.0] * 4) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("y", "v"), [([1.0, 2.0], [1.0, 1.0]), ([1.0] * 3, [1.0] * 4), ([1.0, np.nan, 2.0], [1.0] * 3)]
)
def test_what_cannot_be_summarised_is_refused(y: list[float], v: list[float]) -> None:
    with pytest.raises(ConfigError, match="random effects were given"):
        random_effects(y, v)
    with pytest.raises(ConfigError, match="negative variance"):
        next_integrated([1.0] * 3, [1.0, -1.0, 1.0])
