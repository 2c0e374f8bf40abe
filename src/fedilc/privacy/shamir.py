"""Shamir's secret sharing (1979): any `threshold` shares give the secret, fewer say nothing about it.

A secret s is the value at 0 of a random polynomial of degree threshold - 1 over the integers modulo the
Mersenne prime 2^521 - 1, which holds any secret of 64 bytes; share x is its value at x.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import lru_cache

PRIME = 2**521 - 1
SECRET_BYTES = 32
SHARE_BYTES = 66


def split_secret(secret: bytes, shares: int, threshold: int) -> dict[int, bytes]:
    """Return shares 1 to `shares` of a secret of 32 bytes.

    >>> parts = split_secret(bytes(range(32)), shares=5, threshold=4)
    >>> join_shares({place: parts[place] for place in (1, 2, 4, 5)}) == bytes(range(32))
    True
    """
    if not 1 <= threshold <= shares:
        raise ValueError(f"a threshold of {threshold} does not fit {shares} shares")
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {x: _value(coefficients, x).to_bytes(SHARE_BYTES) for x in range(1, shares + 1)}


def join_shares(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of at least `threshold` shares, by Lagrange interpolation at 0.

    Raises:
        ValueError: if the shares are not those of one secret of 32 bytes, as far as that can be seen.
    """
    points = {x: int.from_bytes(share) for x, share in shares.items()}
    if any(not 0 < x < PRIME or y >= PRIME for x, y in points.items()):
        raise ValueError("a share is outside the field")
    factors = _factors(tuple(points))
    total = sum(factor * y for factor, y in zip(factors, points.values(), strict=True)) % PRIME
    if total >= 1 << 8 * SECRET_BYTES:
        raise ValueError("the shares are not those of one secret")
    return total.to_bytes(SECRET_BYTES)


@lru_cache(maxsize=8)
def _factors(places: tuple[int, ...]) -> tuple[int, ...]:
    """Return the values at 0 of Lagrange's polynomials, which are the same for all secrets."""
    found = []
    for x in places:
        above, below = 1, 1
        for other in places:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)


def _value(coefficients: list[int], x: int) -> int:
    """Return the polynomial's value at x, by Horner's rule."""
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * x + coefficient) % PRIME
    return total
