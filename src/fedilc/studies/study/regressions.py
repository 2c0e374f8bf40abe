"""Logistic and ridge regressions of examples that lie in one place: many at once, by Newton's method.

The objective is that of the federated regression (`gradients/newton.py`) and of scikit-learn with
C = 1 / (n ridge): 1/n sum loss_i + ridge/2 ||w||^2, without the intercept in ||w||. A study fits thousands of
regressions of a few dozen rows, which differ in ridge or fold: one after another they are all overhead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

MOST_BYTES = 8 << 20  # of the examples of regressions that are fitted at once
_STEPS, _HALVINGS = 200, 40
_TOLERANCE = 1e-15  # as in `gradients/newton.py`


def fit_regressions(
    inputs: Sequence[Tensor], labels: Sequence[Tensor], ridges: Sequence[float], binary: bool
) -> list[Tensor]:
    """Return the intercept, then the coefficients, of each regression.

    Args:
        inputs: one row per example, of each regression.
        labels: one per example; 0 and 1 if they are binary, of which both occur.
        ridges: ridge per example of each regression, above 0.
        binary: whether the regression is logistic, or else ridge regression.
    """
    found: list[Tensor] = []
    start = 0
    while start < len(inputs):
        stop, most = start + 1, inputs[start].nbytes
        while stop < len(inputs) and (stop + 1 - start) * max(most, inputs[stop].nbytes) <= MOST_BYTES:
            most = max(most, inputs[stop].nbytes)
            stop += 1
        part = slice(start, stop)
        found += _fitted(inputs[part], labels[part], ridges[part], binary)
        start = stop
    return found


def _fitted(
    inputs: Sequence[Tensor], labels: Sequence[Tensor], ridges: Sequence[float], binary: bool
) -> list[Tensor]:
    """Return regressions of examples that fit into memory together; rows that are filled up count 0."""
    count, rows, width = len(inputs), max(map(len, labels)), max(x.shape[1] for x in inputs)
    x = torch.zeros(count, rows, width + 1, dtype=torch.float64)
    y, share = x.new_zeros(count, rows), x.new_zeros(count, rows)
    for place, (own, of) in enumerate(zip(inputs, labels, strict=True)):
        x[place, : len(of), 0] = 1.0
        x[place, : len(of), 1 : own.shape[1] + 1] = own
        y[place, : len(of)] = of
        share[place, : len(of)] = 1 / len(of)
    ridge = torch.tensor(ridges, dtype=torch.float64).unsqueeze(1).repeat(1, width + 1)
    ridge[:, 0] = 0.0
    weights = _minimum(x, y, share, ridge, binary)
    return [row[: own.shape[1] + 1] for row, own in zip(weights, inputs, strict=True)]


def _minimum(x: Tensor, y: Tensor, share: Tensor, ridge: Tensor, binary: bool) -> Tensor:
    """Return the weights with the lowest objective; a step that does not lower it is halved."""
    weights = torch.zeros_like(ridge)
    before = torch.full((len(x),), torch.inf, dtype=torch.float64)
    base, direction, length = weights, torch.zeros_like(weights), torch.ones_like(before)
    left = torch.ones_like(before, dtype=torch.bool)
    for _ in range(_STEPS):
        z = torch.bmm(x, weights.unsqueeze(2))[:, :, 0]
        p = z.sigmoid() if binary else z
        losses = nn.functional.softplus(z) - y * z if binary else (z - y).square() / 2
        objective = (share * losses).sum(1) + (ridge * weights.square()).sum(1) / 2
        worse = objective > before + _TOLERANCE * before.abs()
        worse &= length > 2.0**-_HALVINGS
        slope = torch.bmm((share * (p - y)).unsqueeze(1), x)[:, 0] + ridge * weights
        curvature = share * p * (1 - p) if binary else share
        hessian = torch.bmm(x.mT, x * curvature.unsqueeze(2)) + torch.diag_embed(ridge)
        factor, failed = torch.linalg.cholesky_ex(hessian)
        if failed.any():  # every risk of a regression is 0 or 1 up to rounding
            newest = -torch.linalg.lstsq(hessian, slope.unsqueeze(2), driver="gelsd").solution[:, :, 0]
        else:
            newest = -torch.cholesky_solve(slope.unsqueeze(2), factor)[:, :, 0]
        gain = -(slope * newest).sum(1) / 2
        length = torch.where(worse, length / 2, 1.0)
        base = torch.where(worse.unsqueeze(1), base, weights)
        direction = torch.where(worse.unsqueeze(1), direction, newest)
        before = torch.where(worse, before, objective)
        following = base + length.unsqueeze(1) * direction
        weights = torch.where(left.unsqueeze(1), following, weights)
        left &= worse | (gain > _TOLERANCE * objective.abs().clamp(min=1.0))
        if not left.any():
            break
    return weights
