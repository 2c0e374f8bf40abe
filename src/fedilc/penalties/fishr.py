"""Fishr (Rame et al. 2022), the paper's penalty: s_e is C_e, the variance of the classifier's gradient.

The classifier's gradient for example i is g_i = delta_i z_i^T (delta: gradient at the logits, in closed
form; z: features, with a 1 appended for the bias), so both moments of it need a forward pass only:

    diagonal:  C = E[g^2] - E[g]^2          full:  C = E[g g^T] - E[g] E[g]^T

Its vector-Jacobian product has a closed form too, up to the network below the classifier. With m = E[g],

    dC/dg_i contracted with v  =  2/n v (g_i - m)   (full: 2/n V (g_i - m), V symmetric),

and g_i = delta_i z_i^T carries it on to delta and z, where autograd takes over. Each example's part depends
on the others only through m, so a silo larger than memory is computed chunk by chunk, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal

import torch
from torch import Tensor, nn

from fedilc.aggregation.base import wide_dtype
from fedilc.algorithms.parts import Reduction
from fedilc.algorithms.registry import checks_options
from fedilc.gradients.forward import BackwardStarts, Pass
from fedilc.models import find_classifier
from fedilc.penalties import _kernels
from fedilc.penalties.base import Penalty, outer

Covariance = Literal["diagonal", "full"]
CACHE_BYTES = 1 << 20


class Fishr(Penalty):
    """Match C_e, the biased variance over a silo's examples of the classifier's per-example gradient.

    Args:
        covariance: "diagonal" (one number per parameter of the classifier) or "full" (one per pair).
        reduction: "mean" over silos, as in the paper, or "sum", as in its authors' code.

    Raises:
        ConfigError: if `covariance` or `reduction` has another value.

    >>> from fedilc import Algorithm
    >>> Algorithm(intra="geometric", penalty=Fishr("full")).penalty.covariance
    'full'
    """

    statistic = "variance"
    order = 2
    needs_classifier = True

    @checks_options
    def __init__(self, covariance: Covariance = "diagonal", reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.covariance = covariance

    def like(self, model: nn.Module, classifier: str | None) -> Tensor:
        """Return a tensor of the shape of C_e: a vector if diagonal, a matrix if full."""
        layer = find_classifier(model, classifier)[1]
        size = sum(parameter.numel() for parameter in layer.parameters())
        return layer.weight.new_zeros((size, size) if self.covariance == "full" else (size,))

    def sums(self, chunk: Pass) -> Moments:
        """Return the chunk's part of both moments."""
        return classifier_moments(*_classifier_pass(chunk), self.covariance)

    def value(self, total: Moments) -> Tensor:
        """Return C_e."""
        return total.variance().to(total.dtype)

    def carry_back(self, chunk: Pass, total: Moments, vector: Tensor) -> BackwardStarts:
        """Return the gradients at the features and at the logits' gradient, both of which have a graph."""
        features, delta, bias = _classifier_pass(chunk)
        gradients = start_gradients(features, delta, bias, total, vector)
        pairs = zip((features, delta), gradients, strict=True)
        return [(place, gradient) for place, gradient in pairs if place.requires_grad]


def _classifier_pass(chunk: Pass) -> tuple[Tensor, Tensor, bool]:
    """Return z, delta, and whether the classifier has a bias."""
    features = chunk.only_features()
    delta = chunk.logit_gradient()
    return features, delta, chunk.classifier is not None and chunk.classifier.bias is not None


@dataclass(frozen=True)
class Moments:
    """Sums over examples of the classifier's per-example gradient and of its square."""

    first: Tensor
    second: Tensor
    count: int
    dtype: torch.dtype

    def __add__(self, other: Moments) -> Moments:
        both = self.first + other.first, self.second + other.second
        return Moments(*both, self.count + other.count, self.dtype)

    def mean(self) -> Tensor:
        """Return m, the mean gradient, (logits, features) with the bias last."""
        return self.first / self.count

    def variance(self) -> Tensor:
        """Return C_e, biased (1/n): a vector if diagonal, a matrix if full."""
        mean = self.mean().flatten(-2)
        if self.second.dim() == mean.dim():
            return self.second / self.count - mean.square()
        return self.second / self.count - outer(mean, mean)


@torch.no_grad()
def classifier_moments(features: Tensor, delta: Tensor, bias: bool, kind: Covariance) -> Moments:
    """Return the moments over these examples.

    They are float64, because the variance is a difference of nearly equal numbers if gradients vary little.

    Args:
        features: z, the classifier's inputs, (examples, width).
        delta: the loss's gradient at the logits, (examples, logits).
        bias: whether the classifier has a bias, whose gradient is delta itself.
        kind: "diagonal" or "full".
    """
    if kind == "diagonal" and _kernels.usable(features, delta):
        first, second = _kernels.moments(features, delta, bias)
        return Moments(first, second.flatten(), len(features), features.dtype)
    parts = (_moments(features[..., r, :], delta[..., r, :], bias, kind) for r in _cached_rows(features))
    return reduce(add, parts)


def _moments(features: Tensor, delta: Tensor, bias: bool, kind: Covariance) -> Moments:
    wide, dtype = wide_dtype(features.device), features.dtype
    features, delta = features.to(wide), delta.to(wide)
    count = features.shape[-2]
    if kind == "full":
        ones = _with_ones(features, bias)
        samples = outer(delta, ones).flatten(-2)
        return Moments(delta.mT @ ones, samples.mT @ samples, count, dtype)
    squares = delta.square()
    first, second = delta.mT @ features, squares.mT @ features.square()
    if bias:
        first = torch.cat([first, delta.sum(-2).unsqueeze(-1)], -1)
        second = torch.cat([second, squares.sum(-2).unsqueeze(-1)], -1)
    return Moments(first, second.flatten(-2), count, dtype)


def _cached_rows(features: Tensor) -> Iterator[slice]:
    """Yield rows in blocks that stay in cache as float64; on other devices, all at once."""
    count, width = features.shape[-2], features.shape[-1] * features.shape[:-2].numel()
    block = max(1, CACHE_BYTES // (8 * width)) if features.device.type == "cpu" else count
    for start in range(0, count, block):
        yield slice(start, start + block)


@torch.no_grad()
def start_gradients(
    features: Tensor, delta: Tensor, bias: bool, whole: Moments, vector: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients at z and delta from which a backward pass gives a chunk's part of J_e^T v_e."""
    mean, vector = whole.mean().to(features), vector.to(features) * (2 / whole.count)
    diagonal = vector.dim() == features.dim() - 1
    if diagonal and _kernels.usable(features, delta):
        return _kernels.start_gradients(features, delta, vector, vector * mean.flatten())
    at_features, at_delta = torch.empty_like(features), torch.empty_like(delta)
    of_rows = _diagonal if diagonal else _full
    for rows in _cached_rows(features):
        part = (..., rows, slice(None))
        at_features[part], at_delta[part] = of_rows(features[part], delta[part], bias, mean, vector)
    return at_features, at_delta


def _diagonal(z: Tensor, delta: Tensor, bias: bool, mean: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Return v (g - m) carried to z and delta, by matrix products with v and v m."""
    v = vector.view_as(mean)
    weighted, width = v * mean, z.shape[-1]
    matrix, below = v[..., :width], weighted[..., :width]
    at_features = (delta.square() @ matrix).mul_(z)
    if z.dim() == 2:
        at_features.addmm_(delta, below, alpha=-1)
    else:
        at_features.baddbmm_(delta, below, alpha=-1)
    at_delta = delta * (z.square() @ matrix.mT) - z @ below.mT
    if bias:
        at_delta += delta * v[..., -1].unsqueeze(-2) - weighted[..., -1].unsqueeze(-2)
    return at_features, at_delta


def _full(z: Tensor, delta: Tensor, bias: bool, mean: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Return V (g - m) carried to z and delta."""
    ones = _with_ones(z, bias)
    samples = outer(delta, ones).flatten(-2)
    carried = ((samples - mean.flatten(-2).unsqueeze(-2)) @ vector).unflatten(-1, mean.shape[-2:])
    at_features = torch.einsum("...nk,...nkd->...nd", delta, carried[..., : z.shape[-1]])
    return at_features, torch.einsum("...nkd,...nd->...nk", carried, ones)


def _with_ones(features: Tensor, bias: bool) -> Tensor:
    return torch.cat([features, torch.ones_like(features[..., :1])], -1) if bias else features
