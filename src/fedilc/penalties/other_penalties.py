"""V-REx, IRM, CORAL and IGA: penalties whose statistic takes a few lines each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedilc.gradients.forward import BackwardStarts, Pass
from fedilc.models import find_classifier
from fedilc.penalties.base import ExampleMean, Penalty, Total, outer


class VREx(ExampleMean):
    """Match the mean losses of silos (V-REx, Krueger et al. 2021)."""

    statistic = "risk"

    def numbers(self, chunk: Pass) -> Tensor:
        """Return the loss of each example."""
        return chunk.losses()


class IRM(ExampleMean):
    """Make the same scale of the logits optimal in every silo (IRM, Arjovsky et al. 2019)."""

    statistic = "scale gradient"
    centred = False

    def numbers(self, chunk: Pass) -> Tensor:
        """Return <delta, logits> of each example."""
        return (chunk.logit_gradient() * chunk.logits).sum(-1)


class Coral(Penalty):
    """Match the mean and the covariance of the features (CORAL, Sun and Saenko 2016)."""

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
        return Total(torch.cat([wide.sum(-2), (wide.mT @ wide).flatten(-2)], -1), z.shape[-2], z.dtype)

    def value(self, total: Total) -> Tensor:
        """Return (m, S) as one vector."""
        mean, second = _split(total.sum / total.count)
        covariance = (second - outer(mean, mean)) * (total.count / max(1, total.count - 1))
        return torch.cat([mean, covariance.flatten(-2)], -1).to(total.dtype)

    @torch.no_grad()
    def carry_back(self, chunk: Pass, total: Total, vector: Tensor) -> BackwardStarts:
        """Return the gradient at every example's features."""
        z = chunk.only_features()
        first, matrix = _split(vector.to(z))
        mean = _split(total.sum / total.count)[0].to(z)
        around = (z - mean.unsqueeze(-2)) @ (matrix + matrix.mT)
        gradient = around / max(1, total.count - 1) + first.unsqueeze(-2) / total.count
        return [(z, gradient)] if z.requires_grad else []


def _split(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return a vector of w + w^2 numbers as a vector and a matrix."""
    width = int((values.shape[-1] + 0.25) ** 0.5)
    return values[..., :width], values[..., width:].unflatten(-1, (width, width))


class IGA(Penalty):
    """Match the mean gradients of silos (IGA, Koyama and Yamaguchi 2020)."""

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
        flat = torch.cat([gradient.reshape(*chunk.lead, -1) for gradient in found], -1)
        return Total(flat.double(), chunk.y.shape[-1], flat.dtype)

    def value(self, total: Total) -> Tensor:
        """Return the mean gradient."""
        return total.mean()

    def carry_back(self, chunk: Pass, total: Total, vector: Tensor) -> BackwardStarts:
        """Return v at the chunk's gradient, whose own graph gives the product of v with the Hessian."""
        loss = chunk.losses().sum() / total.count
        found = torch.autograd.grad(loss, chunk.parameters, create_graph=True, materialize_grads=True)
        models = chunk.lead.numel()
        parts = vector.split([parameter.numel() // models for parameter in chunk.parameters], -1)
        pairs = zip(found, parts, strict=True)
        return [
            (place, part.view_as(place).to(place).clone()) for place, part in pairs if place.requires_grad
        ]
