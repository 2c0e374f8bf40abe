"""IGA (Koyama and Yamaguchi 2020): s_e is the silo's mean gradient itself; J_e^T v is its Hessian times v."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedilc.gradients.forward import BackwardStarts, Pass
from fedilc.penalties.base import Penalty, Total


class IGA(Penalty):
    """Match the silos' mean gradients."""

    statistic = "mean gradient"
    needs_graph = True

    def like(self, model: nn.Module, _classifier: str | None) -> Tensor:
        """Return a vector of all trainable parameters."""
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return trainable[0].new_zeros(sum(parameter.numel() for parameter in trainable))

    def sums(self, chunk: Pass) -> Total:
        """Return the gradient of the sum of the chunk's losses."""
        loss = chunk.losses().sum()
        found = torch.autograd.grad(loss, chunk.parameters, retain_graph=True, materialize_grads=True)
        flat = torch.cat([gradient.reshape(-1) for gradient in found])
        return Total(flat.double(), len(chunk.x), flat.dtype)

    def value(self, total: Total) -> Tensor:
        """Return the mean gradient."""
        return total.mean()

    def carry_back(self, chunk: Pass, total: Total, vector: Tensor) -> BackwardStarts:
        """Return v at the chunk's gradient, whose own graph leads to the Hessian."""
        loss = chunk.losses().sum() / total.count
        found = torch.autograd.grad(loss, chunk.parameters, create_graph=True, materialize_grads=True)
        parts = vector.split([parameter.numel() for parameter in chunk.parameters])
        pairs = zip(found, parts, strict=True)
        return [
            (place, part.view_as(place).to(place).clone()) for place, part in pairs if place.requires_grad
        ]
