"""Losses by name, with the gradient at the model's outputs in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedilc.algorithms.loss_name import LossName, has_classes
from fedilc.errors import ModelError

_OUTPUTS = {"binary": "one logit", "multiclass": "one logit for each class"}


@dataclass(frozen=True)
class Loss:
    """The loss of each example from the model's outputs f, which are called logits whatever the loss.

    "binary" is the cross-entropy of one logit and "multiclass" that of one logit per class. "regression" is
    (f - y)^2/2 and "huber" is (f - y)^2/2 up to |f - y| = 1 and |f - y| - 1/2 beyond it, both of one output.

    Args:
        name: which of them.
        class_weights: how much an example counts by its class number; None is 1.
    """

    name: LossName
    class_weights: tuple[float, ...] | None = None

    @property
    def has_classes(self) -> bool:
        """Return whether labels are class numbers, rather than quantities."""
        return has_classes(self.name)

    def logits(self, output: Tensor) -> Tensor:
        """Return the model's output as (examples, logits), or raise what was expected."""
        if not isinstance(output, Tensor):
            raise ModelError(f"the model returns {type(output).__name__}; it must return a tensor of logits")
        if output.dim() < 2:
            output = output.reshape(-1, 1)
        if output.dim() != 2 or (self.name != "multiclass") != (output.shape[1] == 1):
            raise ModelError(
                f"the model gives an output of shape {tuple(output.shape)}; the {self.name} loss "
                f"needs {_OUTPUTS.get(self.name, 'one number')} per example"
            )
        return output

    def labels(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Return labels in the dtype this loss computes with."""
        return y.long() if self.name == "multiclass" else y.to(dtype)

    def per_example(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each example."""
        if self.name == "multiclass":
            losses = functional.cross_entropy(logits, y, reduction="none")
        elif self.name == "binary":
            losses = functional.binary_cross_entropy_with_logits(logits[:, 0], y, reduction="none")
        elif self.name == "regression":
            losses = (logits[:, 0] - y).square() / 2
        else:
            losses = functional.huber_loss(logits[:, 0], y, reduction="none")
        return losses if self.class_weights is None else losses * self._weights(losses, y)

    def logit_gradient(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return delta, the gradient of each example's loss at its logits: prediction minus target."""
        if self.name == "multiclass":
            delta = torch.softmax(logits, 1) - functional.one_hot(y, logits.shape[1])
        elif self.name == "binary":
            delta = torch.sigmoid(logits) - y.unsqueeze(1)
        else:
            delta = logits - y.unsqueeze(1)
            delta = delta.clamp(-1, 1) if self.name == "huber" else delta
        return delta if self.class_weights is None else delta * self._weights(delta, y).unsqueeze(1)

    def curvature(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the second derivative of each example's loss along each of its logits."""
        if self.has_classes:
            p = logits.sigmoid() if self.name == "binary" else logits.softmax(1)
            return p * (1 - p)
        steep = (logits - y.unsqueeze(1)).abs() > 1
        return torch.where(steep, 0.0, 1.0).to(logits) if self.name == "huber" else torch.ones_like(logits)

    def weighted_curvature(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the second derivative of each example's loss, times the weight of its class."""
        found = self.curvature(logits, y)
        return found if self.class_weights is None else found * self._weights(found, y).unsqueeze(1)

    def _weights(self, like: Tensor, y: Tensor) -> Tensor:
        """Return the weight of each example's class."""
        return torch.tensor(self.class_weights, dtype=like.dtype, device=like.device)[y.long()]
