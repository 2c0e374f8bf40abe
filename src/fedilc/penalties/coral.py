"""CORAL (Sun and Saenko 2016): s_e is the mean and the covariance of the features, the classifier's input.

With Z the features of a silo's n examples and m their mean, s_e = (m, S), S = (Z - m)^T (Z - m)/(n - 1).
A vector (a, A) on (m, S) gives every example's z the gradient a/n + (A + A^T)(z - m)/(n - 1).
Of one example (a last batch may hold one) S is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedilc.gradients.forward import BackwardStarts, Pass
from fedilc.models import find_classifier
from fedilc.penalties.base import Penalty, Total


class Coral(Penalty):
    """Match the mean and the covariance of the features."""

    statistic = "features"
    needs_classifier = True

    def like(self, model: nn.Module, classifier: str | None) -> Tensor:
        """Return a vector of a mean and a flattened covariance."""
        weight = find_classifier(model, classifier)[1].weight
        return weight.new_zeros(weight.shape[1] * (1 + weight.shape[1]))

    @torch.no_grad()
    def sums(self, chunk: Pass) -> Total:
        """Return the chunk's sums of z and z z^T, as one vector."""
        z = chunk.only_features()
        wide = z.double()
        return Total(torch.cat([wide.sum(0), (wide.T @ wide).flatten()]), len(z), z.dtype)

    def value(self, total: Total) -> Tensor:
        """Return (m, S) as one vector."""
        mean, second = _split(total.sum / total.count)
        covariance = (second - torch.outer(mean, mean)) * (total.count / max(1, total.count - 1))
        return torch.cat([mean, covariance.flatten()]).to(total.dtype)

    @torch.no_grad()
    def carry_back(self, chunk: Pass, total: Total, vector: Tensor) -> BackwardStarts:
        """Return the gradient at every example's features."""
        z = chunk.only_features()
        first, matrix = _split(vector.to(z))
        mean = _split(total.sum / total.count)[0].to(z)
        gradient = (z - mean) @ (matrix + matrix.T) / max(1, total.count - 1) + first / total.count
        return [(z, gradient)] if z.requires_grad else []


def _split(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return a vector of w + w^2 numbers as a vector and a matrix."""
    width = int((values.numel() + 0.25) ** 0.5)
    return values[:width], values[width:].view(width, width)
