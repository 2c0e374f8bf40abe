"""Fishr's C_e: the variance over a silo's examples of the classifier's per-example gradient.

The classifier's gradient for example i is delta_i z_i^T (delta: gradient at the logits, in closed
form; z: features, with a 1 appended for the bias), so both moments of it need a forward pass only:

    diagonal:  C = E[(delta z)^2] - E[delta z]^2          full:  C = E[g g^T] - E[g] E[g]^T

Its vector-Jacobian product is the gradient of a function that is linear in sums over examples,

    J^T v = d/dw ( <v, second moment> - 2 <v first moment, first moment> ),

the first `first moment` held constant: so a silo larger than memory is done chunk by chunk, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedilc.numerics import wide_dtype

Covariance = Literal["diagonal", "full"]


@dataclass(frozen=True)
class Moments:
    """Sums over examples of the classifier's per-example gradient and of its square."""

    first: Tensor
    second: Tensor
    count: int

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.first + other.first, self.second + other.second, self.count + other.count)

    def detach(self) -> Moments:
        """The same numbers without a graph."""
        return Moments(self.first.detach(), self.second.detach(), self.count)

    def variance(self) -> Tensor:
        """C_e, biased (1/n): a vector if diagonal, a matrix if full."""
        mean = self.first / self.count
        if self.second.dim() == 1:
            return self.second / self.count - mean.square()
        return self.second / self.count - torch.outer(mean, mean)


def classifier_moments(features: Tensor, delta: Tensor, bias: bool, kind: Covariance) -> Moments:
    """The moments over these examples, differentiable in features and logits.

    They are float64: the variance is a difference of nearly equal numbers where gradients vary little.

    Args:
        features: z, the classifier's inputs, (examples, width).
        delta: the loss's gradient at the logits, (examples, logits).
        bias: whether the classifier has a bias, whose gradient is delta itself.
        kind: "diagonal" or "full".
    """
    wide = wide_dtype(features.device)
    features, delta = features.to(wide), delta.to(wide)
    if bias:
        features = torch.cat([features, features.new_ones(len(features), 1)], 1)
    first = (delta.T @ features).flatten()
    if kind == "diagonal":
        second = (delta.square().T @ features.square()).flatten()
    else:
        samples = (delta.unsqueeze(2) * features.unsqueeze(1)).flatten(1)
        second = samples.T @ samples
    return Moments(first, second, len(features))


def vector_jacobian_form(chunk: Moments, whole: Moments, vector: Tensor) -> Tensor:
    """A number whose gradient, added up over the chunks of a silo, is J_e^T v_e."""
    vector = vector.to(whole.first)
    mean = whole.first / whole.count
    weighted = vector * mean if vector.dim() == 1 else vector @ mean
    form = (vector * chunk.second).sum() - 2 * (weighted * chunk.first).sum()
    return form / whole.count
