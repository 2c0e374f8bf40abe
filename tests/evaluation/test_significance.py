"""Whether a difference is more than noise: against every sign by hand, and scipy's t-test."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from random import Random

import numpy as np
import pytest
from campaigns import campaign, history
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from fedilc.errors import ConfigError
from fedilc.evaluation.significance import (
    LEVEL,
    holm,
    paired_test,
    sign_flip_p,
    smallest_flip_p,
)
from fedilc.paper.campaign import Campaign, compare

pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=3, max_size=8)
OPPOSITE = {"better": "worse", "worse": "better", "within noise": "within noise"}


def every_sign(differences: list[int]) -> float:
    """The sign-flip p by its definition, in whole numbers."""
    observed = abs(sum(differences))
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    return float(Fraction(sum(one >= observed for one in sums), len(sums)))


@given(st.lists(st.integers(-30, 30), min_size=1, max_size=9), st.sampled_from([1.0, 0.1, 1e-7]))
def test_the_sign_flip_p_counts_every_way_to_sign_the_differences(found: list[int], unit: float) -> None:
    assert sign_flip_p([unit * one for one in found]) == every_sign(found)


@given(pairs)
def test_the_t_test_is_scipys_paired_one(found: list[tuple[int, int]]) -> None:
    ours, theirs = (np.array(side) / 64 for side in zip(*found, strict=True))
    assume(np.ptp(ours - theirs) > 0)
    assert paired_test(ours, theirs).t_p == pytest.approx(ttest_rel(ours, theirs).pvalue)


@given(pairs)
def test_the_other_way_round_the_difference_and_the_verdict_turn_and_the_p_values_stay(
    found: list[tuple[int, int]],
) -> None:
    ours, theirs = ([one / 64 for one in side] for side in zip(*found, strict=True))
    there, back = paired_test(ours, theirs), paired_test(theirs, ours)
    assert back.difference == -there.difference
    assert (back.t_p, back.flip_p) == (pytest.approx(there.t_p), there.flip_p)
    assert back.verdict == OPPOSITE[there.verdict]
    assert paired_test(ours, theirs, lower_is_better=False).verdict == OPPOSITE[there.verdict]


@given(pairs, st.randoms(use_true_random=False))
def test_the_order_of_the_seeds_does_not_matter_nor_what_both_have_in_common(
    found: list[tuple[int, int]], random: Random
) -> None:
    shuffled = sorted(found, key=lambda _: random.random())
    one = paired_test(*([x / 64 for x in side] for side in zip(*found, strict=True)))
    two = paired_test(*([5 + x / 64 for x in side] for side in zip(*shuffled, strict=True)))
    assert two.verdict == one.verdict
    assert two.flip_p == one.flip_p
    assert two.t_p == pytest.approx(one.t_p)


@given(pairs)
def test_no_p_of_flips_is_below_the_least_that_so_many_seeds_allow(found: list[tuple[int, int]]) -> None:
    test = paired_test(*([float(x) for x in side] for side in zip(*found, strict=True)))
    assert test.flip_p is not None
    assert smallest_flip_p(len(found)) <= test.flip_p <= 1


def test_five_seeds_that_all_agree_have_the_least_p_and_the_t_test_decides() -> None:
    clear = paired_test([0.50, 0.51, 0.49, 0.50, 0.52], [0.60, 0.60, 0.60, 0.61, 0.61])
    assert (clear.flip_p, clear.verdict, clear.seeds) == (0.0625, "better", 5)
    assert clear.t_p is not None
    assert clear.t_p < 0.001
    faint = paired_test([0.59, 0.59, 0.59, 0.59, 0.30], [0.60, 0.60, 0.60, 0.60, 0.60])
    assert (faint.flip_p, faint.verdict) == (0.0625, "within noise")


def test_equal_values_are_no_difference_and_equal_differences_are_tested_by_their_signs() -> None:
    same = paired_test([0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    assert (same.t_p, same.flip_p, same.verdict) == (1.0, 1.0, "within noise")
    shifted = paired_test([0.1, 0.2, 0.3], [0.2, 0.3, 0.4])
    assert (shifted.t_p, shifted.flip_p, shifted.verdict) == (0.25, 0.25, "within noise")
    six = paired_test([0.1] * 6, [0.2] * 6)
    assert (six.t_p, six.verdict) == (2 / 2**6, "better")
    assert paired_test([0.1] * 40, [0.2] * 40).t_p == 2 / 2**40


@given(
    st.integers(-30, 30),
    st.lists(st.integers(0, 10**6), min_size=3, max_size=8),
    st.sampled_from([1.0, 0.1, 1e-7]),
)
def test_equal_differences_have_the_p_of_every_way_to_sign_them_also_if_they_are_rounded(
    difference: int, reference: list[int], unit: float
) -> None:
    theirs = [unit * one for one in reference]
    ours = [unit * (one + difference) for one in reference]
    test = paired_test(ours, theirs)
    assert test.t_p == every_sign([difference] * len(reference))
    assert test.t_p > 0


def test_accuracies_of_three_equal_small_sites_reject_true_null_hypotheses_in_at_most_5_percent() -> None:
    """Four methods and the reference, all as good as each other, each right in about 80 % of 20 examples."""
    generator = np.random.default_rng(0)
    studies, sites, examples, methods = 20_000, 3, 20, 4
    easy = generator.random((studies, sites, examples)) < 0.8
    right = [(easy ^ (generator.random(easy.shape) < 0.05)).sum(2, dtype=np.int8) for _ in range(methods + 1)]
    differences = np.sort(np.stack([one - right[0] for one in right[1:]], 1), axis=2)
    kinds, places = np.unique(differences.reshape(-1, sites), axis=0, return_inverse=True)
    p_values = np.array([paired_test(kind / examples, np.zeros(sites)).t_p for kind in kinds])
    by_study = p_values[places].reshape(studies, methods)
    any_rejected = np.array([min(holm(row)) < LEVEL for row in by_study.tolist()])
    assert any_rejected.mean() <= 0.05


def test_rounding_is_no_difference() -> None:
    values = np.array([0.1, 0.7, 0.3, 1.1])
    assert paired_test(values * 3 / 3, values).verdict == "within noise"
    assert paired_test(np.nextafter(values, 9), values).difference == 0.0


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_are_not_tested(seeds: int) -> None:
    test = paired_test([0.1, 0.2][:seeds], [0.5, 0.7][:seeds])
    assert (test.seeds, test.t_p, test.flip_p, test.verdict) == (seeds, None, None, "not tested")
    assert test.difference < 0


def test_more_than_twenty_seeds_have_the_t_test_alone() -> None:
    values = [0.01 * (number % 7) for number in range(21)]
    test = paired_test(values, [value + 0.1 + 0.001 * (i % 2) for i, value in enumerate(values)])
    assert (test.flip_p, test.verdict) == (None, "better")


@pytest.mark.parametrize(("ours", "theirs"), [([0.1], [0.1, 0.2]), ([], [])])
def test_values_that_do_not_pair_are_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ConfigError, match=f"given {len(ours)} values and {len(theirs)} to compare"):
        paired_test(ours, theirs)


def test_a_campaign_pairs_by_the_number_of_the_seed_and_takes_the_common_ones() -> None:
    ours = {3: history(0.3), 0: history(0.2), 7: history(0.9), 5: history(0.4)}
    theirs = {0: history(0.5), 5: history(0.8), 3: history(0.6), 1: history(0.1)}
    one = Campaign("demo", {"fedcurv": ours, "fedsgd": theirs})
    test = compare(one, "fedcurv", "fedsgd", "test_loss", "oracle")
    assert test is not None
    assert test.seeds == 3
    assert test.difference == pytest.approx((0.3 - 0.6 + 0.2 - 0.5 + 0.4 - 0.8) / 3)


def test_a_campaign_knows_which_way_is_better() -> None:
    one = campaign({"fedcurv": [0.1, 0.12, 0.11], "fedsgd": [0.5, 0.53, 0.51]})
    for metric in ("test_loss", "test_accuracy", "fairness_variance", "fairness_entropy"):
        test = compare(one, "fedcurv", "fedsgd", metric, "last")
        assert test is not None
        assert test.verdict == "better"


def test_without_a_common_seed_there_is_nothing_to_compare() -> None:
    one = Campaign("demo", {"fedcurv": {0: history(0.1)}, "fedsgd": {1: history(0.1)}})
    assert compare(one, "fedcurv", "fedsgd", "test_loss", "oracle") is None
    assert compare(one, "fedcurv", "geometric", "test_loss", "oracle") is None


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_rejects_what_its_steps_by_the_book_reject(found: list[float]) -> None:
    corrected = holm(found)
    for level in (0.01, 0.05, 0.3):
        rejected: set[int] = set()
        for step, place in enumerate(sorted(range(len(found)), key=lambda one: found[one])):
            if found[place] * (len(found) - step) > level:
                break
            rejected.add(place)
        assert {place for place, p in enumerate(corrected) if p <= level} == rejected
    assert all(after >= before for before, after in zip(found, corrected, strict=True))
