"""IRM (Arjovsky et al. 2019), version 1: the squared gradient of the loss at a scale of 1 on the logits.

s_e = d/ds mean loss(s * logits) at s = 1, which is the mean over examples of <delta_i, logits_i>, delta being
the loss's gradient at the logits. It is compared with 0, so that silos need to know nothing of each other:
L = 1/E sum_e s_e^2, and v_e = 2/E s_e.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedilc.gradients.forward import Pass
from fedilc.penalties.base import Penalty, Seeds, Total


class IRM(Penalty):
    """Let the same scale of the logits be best in every silo."""

    statistic = "scale gradient"
    centred = False

    def like(self, model: nn.Module, _classifier: str | None) -> Tensor:
        """Return one number."""
        return next(model.parameters()).new_zeros(1)

    def sums(self, chunk: Pass) -> Total:
        """Return the sum of <delta, logits> over the chunk."""
        return Total.of(_slopes(chunk))

    def value(self, total: Total) -> Tensor:
        """Return the mean slope."""
        return total.mean()

    def carry_back(self, chunk: Pass, total: Total, vector: Tensor) -> Seeds:
        """Return v/n at each example's slope."""
        slopes = _slopes(chunk)
        return [(slopes, (vector.to(slopes) / total.count).expand_as(slopes).clone())]


def _slopes(chunk: Pass) -> Tensor:
    """Return <delta_i, logits_i> of each example, with its graph."""
    return (chunk.loss.logit_gradient(chunk.logits, chunk.y) * chunk.logits).sum(1)
