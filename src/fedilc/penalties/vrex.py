"""V-REx (Krueger et al. 2021): s_e is the silo's mean loss, so that L is the variance of the risks."""

from __future__ import annotations

from torch import Tensor, nn

from fedilc.gradients.forward import Pass
from fedilc.penalties.base import Penalty, Seeds, Total


class VREx(Penalty):
    """Match the silos' mean losses."""

    statistic = "risk"

    def like(self, model: nn.Module, _classifier: str | None) -> Tensor:
        """Return one number."""
        return next(model.parameters()).new_zeros(1)

    def sums(self, chunk: Pass) -> Total:
        """Return the sum of the chunk's losses."""
        return Total.of(chunk.losses())

    def value(self, total: Total) -> Tensor:
        """Return the mean loss."""
        return total.mean()

    def carry_back(self, chunk: Pass, total: Total, vector: Tensor) -> Seeds:
        """Return v/n at each example's loss."""
        losses = chunk.losses()
        return [(losses, (vector.to(losses) / total.count).expand_as(losses).clone())]
