"""Regressions fitted together, against scikit-learn one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor

from fedilc.studies.study import regressions
from fedilc.studies.study.regressions import fit_regressions

RIDGES = (1e-4, 0.01, 1.0)


def problems(seed: int, binary: bool, steep: float = 1.0) -> tuple[list[Tensor], list[Tensor], list[float]]:
    """Return examples of several sizes, each with all ridges."""
    random = np.random.default_rng(seed)
    inputs, labels = [], []
    for rows, width in ((40, 3), (23, 6), (61, 1)):
        x = random.normal(size=(rows, width))
        z = steep * x[:, 0] + random.normal(size=rows)
        y = (z > 0.3).astype(float) if binary else z
        y[:2] = 0.0, 1.0
        inputs += [torch.from_numpy(x)] * len(RIDGES)
        labels += [torch.from_numpy(y)] * len(RIDGES)
    return inputs, labels, list(RIDGES) * 3


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.0, 1.0, 30.0]))
def test_logistic_regressions_are_those_of_scikit_learn(seed: int, steep: float) -> None:
    inputs, labels, ridges = problems(seed, True, steep)
    for found, x, y, ridge in zip(
        fit_regressions(inputs, labels, ridges, True), inputs, labels, ridges, strict=True
    ):
        model = LogisticRegression(C=1 / (len(y) * ridge), solver="newton-cholesky", tol=1e-12, max_iter=200)
        expected = model.fit(x.numpy(), y.numpy())
        assert found[1:].numpy() == pytest.approx(expected.coef_[0], rel=1e-8, abs=1e-8)
        assert found[0].item() == pytest.approx(expected.intercept_[0], rel=1e-8, abs=1e-8)


def test_ridge_regressions_are_those_of_scikit_learn() -> None:
    inputs, labels, ridges = problems(0, False)
    for found, x, y, ridge in zip(
        fit_regressions(inputs, labels, ridges, False), inputs, labels, ridges, strict=True
    ):
        expected = Ridge(alpha=len(y) * ridge, solver="cholesky").fit(x.numpy(), y.numpy())
        assert found[1:].numpy() == pytest.approx(expected.coef_, rel=1e-8, abs=1e-10)
        assert found[0].item() == pytest.approx(expected.intercept_, rel=1e-8, abs=1e-10)


def test_separated_classes_and_columns_that_repeat_have_a_minimum() -> None:
    x = torch.linspace(-1, 1, 30, dtype=torch.float64).unsqueeze(1).repeat(1, 2)
    y = (x[:, 0] > 0).double()
    (found,) = fit_regressions([x], [y], [1e-6], True)
    residual = (torch.sigmoid(found[0] + x @ found[1:]) - y) / len(y)
    assert float(residual.sum().abs()) < 1e-12
    assert (x.T @ residual + 1e-6 * found[1:]).abs().max() < 1e-12


def test_regressions_fitted_apart_are_those_fitted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problems(3, True)
    together = fit_regressions(*given, True)
    monkeypatch.setattr(regressions, "MOST_BYTES", 1)
    for one, other in zip(together, fit_regressions(*given, True), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
