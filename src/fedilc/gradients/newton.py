"""Newton's method for linear models: what a silo answers, and what the server does with it.

A silo answers the gradient and the Hessian of its mean loss at w. Weighted by examples, they add up to those
of the pooled data, so the result is that of pooled training:

    w <- w - t (H + D)^-1 (g + D w),   D = diag(ridge, ..., ridge, 0)

The objective is 1/n sum loss_i + ridge/2 ||w||^2, without the intercept in ||w||; the C of scikit-learn is
1/(n ridge). t is 1, and is halved after each step that did not lower this objective.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fedilc.errors import ConfigError, DivergedError, ModelError
from fedilc.gradients.losses import Loss
from fedilc.optimizers.optimizers import without_compiler

# Stop if the next step can lower the objective by no more than this share of it. The gain of a step is
# quadratic in the error of w, so that this error is then of the order of 1e-8.
_TOLERANCE = 1e-15
_HALVINGS = 20


def gradient_and_hessian(x: Tensor, y: Tensor, weights: Tensor, loss: Loss) -> tuple[Tensor, Tensor, float]:
    """Return the mean gradient, the upper triangle of the mean Hessian, and the mean loss.

    Args:
        x: inputs; what follows the first dimension is flattened.
        y: labels, as the loss needs them.
        weights: the coefficients, and the intercept as the last of them.
        loss: loss of the silo; its class weights apply to all three.
    """
    rows = x.reshape(len(x), -1)
    inputs = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
    logits = (inputs @ weights).unsqueeze(1)
    first, second = loss.logit_gradient(logits, y), loss.weighted_curvature(logits, y)
    gradient = inputs.T @ first[:, 0] / len(x)
    hessian = inputs.T @ (inputs * second) / len(x)
    return gradient, packed(hessian), float(loss.per_example(logits, y).mean())


@without_compiler
class Newton(torch.optim.Optimizer):
    """Newton's method with step halving, for the weight and the intercept of a linear model.

    `weight_decay` is the ridge. `lr`, which every optimiser takes, changes nothing: t begins at 1.
    """

    def __init__(self, params: Iterable[Tensor], lr: float = 1.0, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self._seen: tuple[float, Tensor] | None = None

    def observe(self, loss: float, hessian: Tensor) -> None:
        """Store the mean loss and the packed mean Hessian at the current weights, which `step` needs."""
        self._seen = (loss, hessian)

    @property
    def converged(self) -> bool:
        """Return whether the last step was the last that could lower the objective."""
        group = self.param_groups[0]
        return bool(self.state[group["params"][0]].get("converged", 0.0))

    @torch.no_grad()
    def step(self, _closure: None = None) -> None:  # type: ignore[override]  # no closure is ever given
        """Take a Newton step, or half of the last step if that did not lower the objective."""
        assert self._seen is not None, "Newton's method needs the Hessian"
        (loss, hessian), self._seen = self._seen, None
        group = self.param_groups[0]
        weight, bias = group["params"]
        state = self.state[weight]
        now = torch.cat([weight.flatten(), bias.flatten()])
        ridge = torch.full_like(now, group["weight_decay"])
        ridge[-1] = 0.0
        objective = loss + float((ridge * now.square()).sum()) / 2
        if state and objective > float(state["objective"]) + _TOLERANCE * abs(objective):
            state["length"] = state["length"] / 2
            if float(state["length"]) < 2.0**-_HALVINGS:
                raise DivergedError(
                    "Newton's method found no step that lowers the loss; raise weight_decay, the ridge"
                )
        else:
            slope = torch.cat([weight.grad.flatten(), bias.grad.flatten()]) + ridge * now
            direction = -_solve(unpacked(hessian.to(now)) + torch.diag(ridge), slope)
            gain = -float(slope @ direction) / 2
            state["objective"] = torch.tensor(objective, dtype=torch.float64)
            state["length"] = torch.ones((), dtype=torch.float64)
            state["before"], state["direction"] = now, direction
            state["converged"] = torch.tensor(float(gain <= _TOLERANCE * max(1.0, abs(objective))))
        found = state["before"] + float(state["length"]) * state["direction"]
        weight.copy_(found[:-1].view_as(weight))
        bias.copy_(found[-1:].view_as(bias))


def _solve(matrix: Tensor, vector: Tensor) -> Tensor:
    """Solve a positive definite system; raise if it is singular."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    diagonal = factor.diagonal()
    # A pivot this far below the largest one is due to rounding: some columns depend on others.
    if int(info) or float(diagonal.min()) < 1e-7 * float(diagonal.max()):
        raise ConfigError(
            "some columns are linear combinations of others, or separate the classes completely, so that "
            "the coefficients are not determined; set weight_decay, the ridge, above 0"
        )
    return torch.cholesky_solve(vector.unsqueeze(1), factor)[:, 0]


def packed(matrix: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix, row by row.

    >>> packed(torch.tensor([[1.0, 2.0], [2.0, 3.0]]))
    tensor([1., 2., 3.])
    """
    rows, columns = torch.triu_indices(*matrix.shape)
    return matrix[rows, columns]


def unpacked(triangle: Tensor) -> Tensor:
    """Return the symmetric matrix of an upper triangle.

    >>> unpacked(torch.tensor([1.0, 2.0, 3.0]))
    tensor([[1., 2.],
            [2., 3.]])
    """
    size = int(((8 * len(triangle) + 1) ** 0.5 - 1) / 2)
    matrix = triangle.new_zeros(size, size)
    rows, columns = torch.triu_indices(size, size)
    matrix[rows, columns] = triangle
    return matrix + matrix.triu(1).T


def linear_layer(model: nn.Module) -> nn.Linear:
    """Return the one layer of a linear model, after an optional Flatten; raise if there are other layers."""
    layers = [module for module in model.modules() if not list(module.children())]
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    others = [layer for layer in layers if not isinstance(layer, nn.Linear | nn.Flatten | nn.Identity)]
    if len(linears) != 1 or others or linears[0].bias is None or linears[0].out_features != 1:
        raise ModelError(
            "logistic and ridge regression train a linear model with one output and an intercept; set the "
            "model to 'linear'"
        )
    return linears[0]


@torch.no_grad()
def prepared_for_newton(model: nn.Module) -> nn.Module:
    """Return a linear model in float64 with weights of 0, so that the result depends on no seed."""
    linear_layer(model)
    for parameter in model.parameters():
        parameter.zero_()
    return model.double()
