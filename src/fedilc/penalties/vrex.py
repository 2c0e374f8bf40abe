"""V-REx (Krueger et al. 2021): s_e is the silo's mean loss, so that L is the variance of the risks."""

from __future__ import annotations

from torch import Tensor

from fedilc.gradients.forward import Pass
from fedilc.penalties.base import ExampleMean


class VREx(ExampleMean):
    """Match the silos' mean losses."""

    statistic = "risk"

    def numbers(self, chunk: Pass) -> Tensor:
        """Return the loss of each example."""
        return chunk.losses()
