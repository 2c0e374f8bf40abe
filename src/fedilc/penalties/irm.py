"""IRM (Arjovsky et al. 2019), version 1: the squared gradient of the loss at a scale of 1 on the logits.

s_e = d/ds mean loss(s * logits) at s = 1, which is the mean over examples of <delta_i, logits_i>, delta being
the loss's gradient at the logits. It is compared with 0, so that silos need to know nothing of each other:
L = 1/E sum_e s_e^2, and v_e = 2/E s_e.
"""

from __future__ import annotations

from torch import Tensor

from fedilc.gradients.forward import Pass
from fedilc.penalties.base import ExampleMean


class IRM(ExampleMean):
    """Let the same scale of the logits be best in every silo."""

    statistic = "scale gradient"
    centred = False

    def numbers(self, chunk: Pass) -> Tensor:
        """Return <delta, logits> of each example."""
        return (chunk.loss.logit_gradient(chunk.logits, chunk.y) * chunk.logits).sum(1)
