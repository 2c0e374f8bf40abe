"""Any threshold of shares gives the secret; one less is consistent with every secret."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedilc.privacy.shamir import PRIME, SHARE_BYTES, join_shares, split_secret

SECRETS = st.binary(min_size=32, max_size=32)


def test_the_field_is_that_of_a_mersenne_prime() -> None:
    """The test of Lucas and Lehmer: 2^p - 1 is prime if s, squared minus 2 for p - 2 times from 4, is 0."""
    s = 4
    for _ in range(521 - 2):
        s = (s * s - 2) % PRIME
    assert s == 0


def test_shares_of_a_known_polynomial() -> None:
    """1234 + 166 x + 94 x^2, the example of the literature, whose values at 2, 4 and 5 are known."""
    shares = {2: 1942, 4: 3402, 5: 4414}
    joined = join_shares({x: y.to_bytes(SHARE_BYTES) for x, y in shares.items()})
    assert int.from_bytes(joined) == 1234


@given(SECRETS, st.integers(1, 7), st.data())
@settings(max_examples=50, deadline=None)
def test_every_choice_of_enough_shares_gives_the_secret(
    secret: bytes, shares: int, data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(1, shares))
    parts = split_secret(secret, shares, threshold)
    for size in range(threshold, shares + 1):
        for chosen in combinations(parts, size):
            assert join_shares({place: parts[place] for place in chosen}) == secret


@given(SECRETS, SECRETS)
@settings(max_examples=30, deadline=None)
def test_one_share_less_fits_every_secret(secret: bytes, other: bytes) -> None:
    """Given threshold - 1 shares, each other secret has a last share that fits: nothing is ruled out."""
    parts = split_secret(secret, 3, 3)
    known = {place: int.from_bytes(parts[place]) for place in (1, 2)}
    # The parabola through (0, other), (1, y1), (2, y2), at 3, in Lagrange's form.
    last = (int.from_bytes(other) - 3 * known[1] + 3 * known[2]) % PRIME
    forged = {1: parts[1], 2: parts[2], 3: last.to_bytes(SHARE_BYTES)}
    assert join_shares(forged) == other


def test_wrong_shares_are_refused() -> None:
    parts = split_secret(bytes(32), 3, 3)
    with pytest.raises(ValueError, match="not those of one secret"):
        join_shares({1: parts[2], 2: parts[1], 3: parts[3]})
    with pytest.raises(ValueError, match="outside the field"):
        join_shares({1: b"\xff" * SHARE_BYTES})
    with pytest.raises(ValueError, match="threshold"):
        split_secret(bytes(32), 3, 4)
    with pytest.raises(ValueError, match="32 bytes"):
        split_secret(bytes(31), 3, 2)
