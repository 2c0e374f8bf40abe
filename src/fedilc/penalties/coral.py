"""CORAL (Sun and Saenko 2016): s_e is the mean and the covariance of the features, the classifier's input.

With Z the features of a silo's n examples and m their mean, s_e = (m, S), S = (Z - m)^T (Z - m)/(n - 1).
A vector (a, A) on (m, S) gives every example's z the gradient a/n + (A + A^T)(z - m)/(n - 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedilc.errors import DataError
from fedilc.gradients.forward import Pass
from fedilc.models import find_classifier
from fedilc.penalties.base import Penalty, Seeds


@dataclass(frozen=True)
class _Moments:
    """Sums of z and of z z^T in float64, how many they are, and the dtype they came in."""

    first: Tensor
    second: Tensor
    count: int
    dtype: torch.dtype

    def __add__(self, other: _Moments) -> _Moments:
        total = self.first + other.first, self.second + other.second
        return _Moments(*total, self.count + other.count, self.dtype)


class Coral(Penalty):
    """Match the mean and the covariance of the features."""

    statistic = "features"
    needs_classifier = True

    def like(self, model: nn.Module, classifier: str | None) -> Tensor:
        """Return a vector of a mean and a flattened covariance."""
        weight = find_classifier(model, classifier)[1].weight
        return weight.new_zeros(weight.shape[1] * (1 + weight.shape[1]))

    @torch.no_grad()
    def sums(self, chunk: Pass) -> _Moments:
        """Return the chunk's sums of z and z z^T."""
        z = chunk.only_features()
        wide = z.double()
        return _Moments(wide.sum(0), wide.T @ wide, len(z), z.dtype)

    def value(self, total: _Moments) -> Tensor:
        """Return (m, S) as one vector."""
        if total.count < 2:
            raise DataError(
                "a silo with one example has no covariance of features; give it more, or leave it"
            )
        mean = total.first / total.count
        covariance = (total.second - total.count * torch.outer(mean, mean)) / (total.count - 1)
        return torch.cat([mean, covariance.flatten()]).to(total.dtype)

    @torch.no_grad()
    def carry_back(self, chunk: Pass, total: _Moments, vector: Tensor) -> Seeds:
        """Return the gradient at every example's features."""
        z = chunk.only_features()
        width = z.shape[1]
        first, second = vector.to(z).split([width, width * width])
        matrix = second.view(width, width)
        mean = (total.first / total.count).to(z)
        seed = (z - mean) @ (matrix + matrix.T) / (total.count - 1) + first / total.count
        return [(z, seed)] if z.requires_grad else []
