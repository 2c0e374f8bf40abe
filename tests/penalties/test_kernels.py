"""Fishr's compiled loops: against autograd in float64, on several threads, and what they do not take."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedilc.penalties import _kernels
from fedilc.penalties.fishr import classifier_moments, start_gradients


@pytest.fixture(autouse=True, scope="module")
def _loops_for_any_size() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernels, "LEAST_VALUES", 0)
        yield


def drawn(rows: int, width: int, seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Features after ReLU, gradients at the logit, and v with an element for the bias."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, width, generator=generator).relu() * scale
    return z, torch.rand(rows, 1, generator=generator) - 0.5, torch.randn(width + 1, generator=generator)


def variance(z: Tensor, delta: Tensor, bias: bool) -> Tensor:
    """C_e by its definition, with its graph."""
    samples = delta * (torch.cat([z, torch.ones_like(delta)], 1) if bias else z)
    return (samples - samples.mean(0)).square().mean(0)


@given(
    rows=st.sampled_from([1, 2, 3, 17, 255, 256, 257, 700]),
    width=st.sampled_from([1, 7, 8, 9, 31, 64, 130]),
    bias=st.booleans(),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    seed=st.integers(0, 1000),
)
def test_variance_and_start_gradients_equal_autograd_in_float64(
    rows: int, width: int, bias: bool, scale: float, seed: int
) -> None:
    z, delta, vector = drawn(rows, width, seed, scale)
    vector = vector if bias else vector[:-1]
    assert _kernels.usable(z, delta)
    wide_z, wide_delta = (t.double().requires_grad_() for t in (z, delta))
    expected = variance(wide_z, wide_delta, bias)
    found = classifier_moments(z, delta, bias, "diagonal")
    torch.testing.assert_close(
        found.variance(), expected.detach(), rtol=1e-12, atol=1e-13 * float(1 + scale) ** 2
    )

    right = torch.autograd.grad((expected * vector.double()).sum(), (wide_z, wide_delta))
    ours = start_gradients(z, delta, bias, found, vector)
    sizes = sizes_of_terms(z, delta, bias, found.mean(), vector)
    for one, exact, size in zip(ours, right, sizes, strict=True):
        assert bool(((one.double() - exact).abs() <= 1e-6 * size).all())


def sizes_of_terms(
    z: Tensor, delta: Tensor, bias: bool, mean: Tensor, vector: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the sums of the terms' magnitudes; float32 gradients are right to a small part of them."""
    inputs = (torch.cat([z, torch.ones_like(delta)], 1) if bias else z).double()
    terms = 2 / len(z) * vector.double().abs() * ((delta.double() * inputs).abs() + mean.abs())
    at_features = (delta.double().abs() * terms)[:, : z.shape[1]]
    return at_features, (terms * inputs).sum(1, keepdim=True)


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    z, delta, vector = drawn(3000, 130)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            moments = classifier_moments(z, delta, True, "diagonal")
            ours = start_gradients(z, delta, True, moments, vector)
            found.append([moments.first, moments.second, *ours])
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


def test_features_may_be_a_view_of_something_larger() -> None:
    z, delta, vector = drawn(300, 40)
    views = z.repeat_interleave(2, 1)[:, ::2], delta.expand(-1, 3)[:, 1:2]
    moments = classifier_moments(z, delta, True, "diagonal")
    again = classifier_moments(*views, True, "diagonal")
    assert torch.equal(moments.second, again.second)
    for one, other in zip(
        start_gradients(z, delta, True, moments, vector),
        start_gradients(*views, True, again, vector),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_what_is_not_finite_stays_so() -> None:
    z, delta, vector = drawn(300, 40)
    z[5, 3], delta[7, 0] = float("inf"), float("nan")
    moments = classifier_moments(z, delta, True, "diagonal")
    assert np.isnan(moments.variance()[3].item())
    at_features, at_delta = start_gradients(z, delta, True, moments, vector)
    assert not at_delta[7].isfinite().any()
    assert not at_features[7].isfinite().any()


def test_other_dtypes_several_logits_and_few_values_go_through_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    z, delta, _ = drawn(30, 4)
    assert not _kernels.usable(z.double(), delta.double())
    assert not _kernels.usable(z, delta.expand(-1, 2))
    assert not _kernels.usable(z.to("meta"), delta.to("meta"))
    monkeypatch.setattr(_kernels, "LEAST_VALUES", 121)
    assert not _kernels.usable(z, delta)
