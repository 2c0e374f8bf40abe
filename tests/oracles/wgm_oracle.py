"""The slow, obvious weighted geometric mean, in mpmath with 60 digits."""

from __future__ import annotations

from collections.abc import Sequence

import mpmath


def wgm_oracle(values: Sequence[float], zeros: str = "ignore", agreement: float = 0.0) -> mpmath.mpf:
    with mpmath.workdps(60):
        exact = [mpmath.mpf(value) for value in values]
        signs = sum(1 if v > 0 else -1 if v < 0 else 0 for v in exact)
        if abs(signs) / mpmath.mpf(len(exact)) < agreement:
            return mpmath.mpf(0)
        if zeros == "strict" and any(v == 0 for v in exact):
            return mpmath.mpf(0)
        if zeros == "authors":
            exact = [v if v != 0 else -mpmath.mpf(1e-10) for v in exact]
        result = mpmath.mpf(0)
        for sign in (1, -1):
            side = [abs(v) for v in exact if v * sign > 0]
            if side:
                mean = mpmath.fprod(side) ** (mpmath.mpf(1) / len(side))
                result += sign * mpmath.mpf(len(side)) / len(exact) * mean
        return result


def relative_error(found: float, expected: mpmath.mpf) -> float:
    """Relative to the result, or to the smallest float32 where the result is below it."""
    with mpmath.workdps(60):
        return float(abs(mpmath.mpf(found) - expected) / max(abs(expected), mpmath.mpf(2) ** -126))
