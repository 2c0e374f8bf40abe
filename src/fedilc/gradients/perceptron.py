"""Compute the gradient of a perceptron (linear layers with ReLU) by hand, to the bits of autograd.

Autograd records a graph, walks through it and frees it: for a batch of few rows that takes several times as
long as the arithmetic, and a perceptron needs no graph. With a_0 = x, a_l = relu(W_l a_(l-1) + b_l) and
delta_l, the gradient at the output of layer l,

    dW_l = delta_l^T a_(l-1),   db_l = sum of delta_l,   delta_(l-1) = delta_l W_l where a_(l-1) > 0.

These are the operations that autograd would call, on tensors of the same layout, so that bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedilc.gradients.fast_linear import LANES, LEAST_ROWS, LEAST_WIDTH
from fedilc.gradients.losses import Loss

_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Perceptron:
    """Linear layers with ReLU between them.

    Attributes:
        layers: weights and biases, in the order of the parameters.
        odd: whether a layer has a width for which `fast_linear.py` has a product of its own.
    """

    layers: list[tuple[Tensor, Tensor]]
    odd: bool

    @classmethod
    def of(cls, model: nn.Module) -> Perceptron | None:
        """Return the perceptron that a model is, or None if it is, or may do, anything else."""
        modules = list(model.children())
        if type(model) is not nn.Sequential or any(_hooked(module) for module in (model, *modules)):
            return None
        first = modules[0] if modules else model
        if type(first) is nn.Flatten and (first.start_dim, first.end_dim) == (1, -1):
            modules = modules[1:]
        linears, activations = modules[::2], modules[1::2]
        if len(linears) == len(activations) or any(type(module) is not nn.ReLU for module in activations):
            return None
        layers: list[tuple[Tensor, Tensor]] = []
        for module in linears:
            if type(module) is not nn.Linear or module.bias is None:
                return None
            layers.append((module.weight, module.bias))
        flat = [parameter for layer in layers for parameter in layer]
        known = {id(parameter) for parameter in flat}
        if len(known) < len(flat) or not all(
            type(p) is nn.Parameter and p.requires_grad and p.device.type == "cpu" and p.dtype in _DTYPES
            for p in flat
        ):
            return None
        found = cls(layers, odd=False)
        return replace(found, odd=any(width >= LEAST_WIDTH and width % LANES for width in found.widths))

    @property
    def widths(self) -> list[int]:
        """Return the number of inputs, and of each layer's outputs."""
        return [self.layers[0][0].shape[1], *(len(weight) for weight, _ in self.layers)]

    def takes(self, x: object, examples: int, loss: Loss) -> bool:
        """Return whether the gradient over so many examples, like these, can be computed by hand.

        Wide layers of odd widths have their own product for many rows (`fast_linear.py`), and registered
        losses have their gradients from autograd.
        """
        return (
            isinstance(x, Tensor)
            and x.dtype == self.layers[0][0].dtype
            and x.dim() > 1
            and loss.entry.function is None
            and not (self.odd and examples >= LEAST_ROWS)
        )

    def gradients(self, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, list[Tensor]]:
        """Return the logits, and the gradients of the mean loss in the order of the parameters."""
        inputs = [x.flatten(1)]
        for weight, bias in self.layers[:-1]:
            inputs.append(torch.addmm(bias, inputs[-1], weight.t()).relu_())
        weight, bias = self.layers[-1]
        logits = torch.addmm(bias, inputs[-1], weight.t())
        delta = loss.mean_gradient(logits, y)
        found: list[Tensor] = []
        for number in range(len(self.layers) - 1, -1, -1):
            a = inputs[number]
            found += [delta.sum(0), delta.t() @ a]
            if number:
                delta = torch.ops.aten.threshold_backward(delta @ self.layers[number][0], a, 0)
        return logits, found[::-1]


def _hooked(module: nn.Module) -> bool:
    """Return whether hooks run before or after the module, forward or backward."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in names)
