"""Power: the smallest difference that a comparison over a number of pairs would probably find."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

POWER = 0.8


def power_of(effect: float, pairs: int, level: float = 0.05) -> float:
    """Return the chance that a two-sided paired t-test finds a difference of `effect` standard deviations.

    >>> round(power_of(0.5, 34), 3)
    0.808
    """
    from scipy.stats import nct, t

    limit = t.ppf(1 - level / 2, pairs - 1)
    shift = effect * np.sqrt(pairs)
    wrong_side = np.nan_to_num(nct.cdf(-limit, pairs - 1, shift))  # far in this tail, scipy has no number
    return float(nct.sf(limit, pairs - 1, shift) + wrong_side)


def detectable_effect(pairs: int, level: float = 0.05, power: float = POWER) -> float:
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
    differences: Sequence[float], level: float = 0.05, power: float = POWER
) -> float | None:
    """Return the smallest mean difference that the paired t-test over these pairs finds with this power.

    The deviation of the pairs' differences is taken from the data; None below three pairs. Give the level
    after correction for many comparisons (level / comparisons) if it is corrected.
    """
    if len(differences) < 3:
        return None
    return detectable_effect(len(differences), level, power) * float(np.std(differences, ddof=1))
