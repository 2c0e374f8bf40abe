"""The two usual losses, with the gradient at the logits in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedilc.data import LossName
from fedilc.errors import ModelError


@dataclass(frozen=True)
class Loss:
    """Cross-entropy of logits, "binary" with one logit or "multiclass" with one a class."""

    name: LossName

    def logits(self, output: Tensor) -> Tensor:
        """Return the model's output as (examples, logits), or raise an error that says what was expected."""
        if not isinstance(output, Tensor):
            raise ModelError(f"the model returns {type(output).__name__}; it must return a tensor of logits")
        if output.dim() < 2:
            output = output.reshape(-1, 1)
        if output.dim() != 2 or (self.name == "binary") != (output.shape[1] == 1):
            expected = "one logit" if self.name == "binary" else "one logit for each class"
            raise ModelError(
                f"the model gives an output of shape {tuple(output.shape)}; the {self.name} loss "
                f"needs {expected} an example"
            )
        return output

    def labels(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Return labels in the dtype that this loss computes with."""
        return y.to(dtype) if self.name == "binary" else y.long()

    def per_example(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each example."""
        if self.name == "binary":
            return functional.binary_cross_entropy_with_logits(logits[:, 0], y, reduction="none")
        return functional.cross_entropy(logits, y, reduction="none")

    def logit_gradient(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return delta, the gradient of each example's loss at its logits: probability minus target."""
        if self.name == "binary":
            return torch.sigmoid(logits) - y.unsqueeze(1)
        return torch.softmax(logits, 1) - functional.one_hot(y, logits.shape[1])
