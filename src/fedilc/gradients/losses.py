"""Losses by name, with the gradient at the model's outputs: in closed form, or by autograd if registered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from fedilc.algorithms.loss_registry import LOSSES, LossEntry, LossName, register
from fedilc.errors import ConfigError, FedILCError, ModelError

_OUTPUTS = {"binary": "one logit", "multiclass": "one logit for each class"}


@dataclass(frozen=True)
class Loss:
    """The loss of each example from the model's outputs f, which are called logits whatever the loss.

    "binary" is the cross-entropy of one logit and "multiclass" that of one logit per class. "regression" is
    (f - y)^2/2 and "huber" is (f - y)^2/2 up to |f - y| = 1 and |f - y| - 1/2 beyond it, both of one output.
    Others are registered functions, whose derivatives come from autograd.

    Args:
        name: name of the loss.
        class_weights: weight of an example by its class number; None is 1 for all.
    """

    name: LossName
    class_weights: tuple[float, ...] | None = None

    @cached_property
    def entry(self) -> LossEntry:
        """Return what the name stands for, found once: every batch asks for it."""
        return LOSSES.get(self.name)

    @property
    def has_classes(self) -> bool:
        """Return whether labels are class numbers, rather than quantities."""
        return self.entry.task != "regression"

    def logits(self, output: Tensor) -> Tensor:
        """Return the model's output as (examples, logits); raise if the loss needs another shape."""
        if not isinstance(output, Tensor):
            raise ModelError(f"the model returns {type(output).__name__}; it must return a tensor of logits")
        if output.dim() < 2:
            output = output.reshape(-1, 1)
        task = self.entry.task
        if output.dim() != 2 or (task != "multiclass") != (output.shape[1] == 1):
            raise ModelError(
                f"the model gives an output of shape {tuple(output.shape)}; the {self.name} loss "
                f"needs {_OUTPUTS.get(task, 'one number')} per example"
            )
        return output

    def labels(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Return labels in the dtype this loss computes with."""
        return y.long() if self.entry.task == "multiclass" else y.to(dtype)

    def per_example(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each example."""
        if self.entry.function is not None:
            losses = self._own(logits, y)
        elif self.name == "multiclass":
            losses = functional.cross_entropy(logits, y, reduction="none")
        elif self.name == "binary":
            losses = functional.binary_cross_entropy_with_logits(logits[:, 0], y, reduction="none")
        elif self.name == "regression":
            losses = (logits[:, 0] - y).square() / 2
        else:
            losses = functional.huber_loss(logits[:, 0], y, reduction="none")
        return losses if self.class_weights is None else losses * self._weights(losses, y)

    def logit_gradient(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return delta, the gradient of each example's loss at its logits: prediction minus target.

        It has a graph if the logits have one.
        """
        if self.entry.function is not None:
            return self._own_gradient(logits, y)
        delta = self._plain_gradient(logits, y)
        return delta if self.class_weights is None else delta * self._weights(delta, y).unsqueeze(1)

    def _plain_gradient(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return prediction minus target, without weights of classes."""
        if self.name == "multiclass":
            return torch.softmax(logits, 1) - functional.one_hot(y, logits.shape[1])
        if self.name == "binary":
            return torch.sigmoid(logits) - y.unsqueeze(1)
        delta = logits - y.unsqueeze(1)
        return delta.clamp(-1, 1) if self.name == "huber" else delta

    def mean_gradient(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of a built-in loss's mean at the logits, without a graph, to autograd's bits.

        For those bits the operations are autograd's, with the share of an example in place of the gradient
        that autograd starts with.
        """
        share: Tensor | float = 1 / len(y)
        if self.class_weights is not None:
            share = self._weights(logits, y).unsqueeze(1) * share
        if self.name != "multiclass":
            return self._plain_gradient(logits, y).mul_(share)
        one_hot = functional.one_hot(y, logits.shape[1]).to(logits.dtype)
        at_target = one_hot.mul_(share).neg_()
        log_p = torch.log_softmax(logits, 1)
        found: Tensor = torch.ops.aten._log_softmax_backward_data(at_target, log_p, 1, logits.dtype)
        return found

    def try_out(self, logits: Tensor) -> None:
        """Call a registered function with these logits and labels of 0, to find mistakes before a round."""
        if self.entry.function is None:
            return
        y = self.labels(torch.zeros(len(logits), device=logits.device), logits.dtype)
        try:
            self.per_example(logits.requires_grad_(), y)
        except FedILCError:
            raise
        except Exception as error:  # a function of someone else may raise anything
            raise ConfigError(
                f"the loss {self.name!r} fails for outputs of shape {tuple(logits.shape)}: "
                f"{type(error).__name__}: {error}; correct its function"
            ) from error

    def curvature(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the second derivative of each example's loss along each of its logits."""
        if self.entry.function is not None:
            return replace(self, class_weights=None)._own_curvature(logits, y)
        if self.has_classes:
            p = logits.sigmoid() if self.name == "binary" else logits.softmax(1)
            return p * (1 - p)
        steep = (logits - y.unsqueeze(1)).abs() > 1
        return torch.where(steep, 0.0, 1.0).to(logits) if self.name == "huber" else torch.ones_like(logits)

    def weighted_curvature(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the second derivative of each example's loss, times the weight of its class."""
        found = self.curvature(logits, y)
        return found if self.class_weights is None else found * self._weights(found, y).unsqueeze(1)

    def _own(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the losses from a registered function; raise if there is not one per example."""
        function = self.entry.function
        assert function is not None
        losses = function(logits if self.entry.task == "multiclass" else logits[:, 0], y)
        if not isinstance(losses, Tensor) or losses.shape != y.shape:
            got = (
                f"a tensor of shape {tuple(losses.shape)}"
                if isinstance(losses, Tensor)
                else type(losses).__name__
            )
            raise ModelError(
                f"the loss {self.name!r} gives {got} for {len(y)} examples; let it return the loss of each "
                "example, without a sum or a mean"
            )
        if torch.is_grad_enabled() and logits.requires_grad and not losses.requires_grad:
            raise ModelError(
                f"the loss {self.name!r} has no gradient at the model's outputs; compute it from them with "
                "torch's operations"
            )
        return losses

    def _own_gradient(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return delta by autograd: losses are independent, so the gradient of their sum holds all."""
        with_graph = torch.is_grad_enabled() and logits.requires_grad
        with torch.enable_grad():
            at = logits if with_graph else logits.detach().requires_grad_()
            return torch.autograd.grad(self.per_example(at, y).sum(), at, create_graph=with_graph)[0]

    def _own_curvature(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the diagonal of each example's Hessian at its logits: a backward pass per logit."""
        with torch.enable_grad():
            at = logits.detach().requires_grad_()
            delta = self._own_gradient(at, y)
            if not delta.requires_grad:  # the loss is piecewise linear in its logits
                return torch.zeros_like(delta)
            columns = (torch.autograd.grad(d.sum(), at, retain_graph=True)[0] for d in delta.unbind(1))
            return torch.stack([column[:, k] for k, column in enumerate(columns)], 1)

    def _weights(self, like: Tensor, y: Tensor) -> Tensor:
        """Return the weight of each example's class."""
        return torch.tensor(self.class_weights, dtype=like.dtype, device=like.device)[y.long()]


__all__ = ["Loss", "register"]
