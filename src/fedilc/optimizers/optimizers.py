"""Make optimisers by name, for the server and for local steps; save their state; schedule the server's rate.

Below are the optimisers that torch does not have: `FedAdam`, `Yogi` and `LayerAdam`. torch's own come from
`__getattr__`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedilc.aggregation.base import wide_dtype
from fedilc.algorithms.parts import OPTIMIZERS, TORCH_OPTIMIZERS
from fedilc.errors import ConfigError, nearest


def make_optimizer(
    name: str,
    parameters: Sequence[Tensor],
    learning_rate: float,
    weight_decay: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> torch.optim.Optimizer:
    """Return an optimiser by name; refuse options that it does not take.

    >>> make_optimizer("sgd", [nn.Parameter(torch.zeros(1))], 0.1, options={"momentun": 0.9})
    Traceback (most recent call last):
    fedilc.errors.ConfigError: optimizer 'sgd' has no option 'momentun'; did you mean 'momentum'?
    """
    kind, given = OPTIMIZERS.get(name), dict(options or {})
    decays = _decays(kind)
    if weight_decay and not decays:
        raise ConfigError(f"optimizer {name!r} has no weight decay; leave out weight_decay={weight_decay:g}")
    known = OPTIMIZERS.options(name)
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"optimizer {name!r} has no option {key!r}{nearest(key, known)}")
        given[key] = tuple(value) if isinstance(value, list) else value
    try:
        if given:  # Some options are refused only in a step, so take a step with one number.
            probe = nn.Parameter(torch.zeros(1))
            probe.grad = torch.ones(1)
            kind([probe], lr=0.1, **given).step()
        if decays:
            given["weight_decay"] = weight_decay
        return kind(parameters, lr=learning_rate, **given)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise ConfigError(f"optimizer {name!r} cannot be used with {given}: {error}") from error


@cache  # Reading a signature takes as long as twenty small steps, and every silo does so in every round.
def _decays(kind: type[torch.optim.Optimizer]) -> bool:
    """Return whether an optimiser has weight decay."""
    return "weight_decay" in inspect.signature(kind).parameters


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's state as named tensors."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, entries in state.items()
        for key, value in entries.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore a state that `optimizer_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split(".", 1)
        state.setdefault(int(number), {})[key] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    # torch casts all state but "step" to the dtype of the parameter, also float32 scalars of a float64
    # network.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, entries in state.items():
        own = optimizer.state[parameters[place]]
        own.update({key: own[key].to(tensor.dtype) for key, tensor in entries.items()})


@dataclass(frozen=True)
class RateSchedule:
    """The server's learning rate by round, as a factor of the initial rate.

    Args:
        kind: "constant"; "step" (times `decay_factor` every `decay_rounds`); "cosine" (to 0 at the end).
        rounds: number of rounds of the run.
        warmup_rounds: number of first rounds, in which the rate rises from 0 in equal steps.
        decay_rounds: rounds between two changes of "step"; None is a third of all rounds.
        decay_factor: factor by which "step" changes the rate.

    >>> RateSchedule("step", 100, decay_rounds=10).factor(21)
    0.010000000000000002
    """

    kind: Literal["constant", "step", "cosine"] = "constant"
    rounds: int = 1
    warmup_rounds: int = 0
    decay_rounds: int | None = None
    decay_factor: float = 0.1

    def factor(self, round_: int) -> float:
        """Return the factor of a round; rounds count from 1."""
        if round_ <= self.warmup_rounds:
            return round_ / self.warmup_rounds
        done = round_ - 1 - self.warmup_rounds
        if self.kind == "step":
            return self.decay_factor ** (done // (self.decay_rounds or max(1, self.rounds // 3)))
        if self.kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done / max(1, self.rounds - self.warmup_rounds)))
        return 1.0


def without_compiler(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return an optimiser class whose methods do not load torch's compiler, which takes seconds.

    torch decorates these methods for use under `torch.compile`; below the decorators they are the same code.
    """
    step = inspect.unwrap(kind.step)

    def plain_step(self: torch.optim.Optimizer, closure: None = None) -> Any:
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return step(self, closure)

    decorated = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in decorated}
    return type(kind.__name__, (kind,), {**methods, "step": plain_step})


@without_compiler
class FedAdam(torch.optim.Optimizer):
    """Adam as in FedAdam (Reddi et al. 2021): no bias correction, and v starts at eps^2 (their tau^2).

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w = w - rate m / (sqrt(v) + eps).

    Args:
        params: parameters to update.
        lr: learning rate.
        betas: b1 and b2, the decays of the means of the gradient and of its square.
        eps: tau, which is added to the root.
        weight_decay: factor of the parameter that is added to its gradient.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, _closure: None = None) -> None:  # type: ignore[override]  # no closure is ever given
        """Take one step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient = parameter.grad
                if group["weight_decay"]:
                    gradient = gradient + group["weight_decay"] * parameter
                self._move(parameter, gradient, group)

    def _move(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        """Take one step with one parameter."""
        first, second = group["betas"]
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.full_like(parameter, group["eps"] ** 2)
        state["exp_avg"].lerp_(gradient, 1 - first)
        self._average(state["exp_avg_sq"], gradient.square(), second)
        parameter.sub_(group["lr"] * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"]))

    def _average(self, average: Tensor, square: Tensor, decay: float) -> None:
        """Update v, the average of squares, with a new square."""
        average.lerp_(square, 1 - decay)


@without_compiler
class Yogi(FedAdam):
    """Yogi (Zaheer et al. 2018) as in FedYogi (Reddi et al. 2021): FedAdam with another v.

    v = v - (1 - b2) g^2 sign(v - g^2).
    """

    def _average(self, average: Tensor, square: Tensor, decay: float) -> None:
        average.sub_((1 - decay) * square * (average - square).sign())


@without_compiler
class LayerAdam(FedAdam):
    """Adam with one second moment per parameter tensor, so that coordinates keep their proportions.

    For a tensor of K coordinates with gradient g,

        m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) 1/K sum_k g_k^2;
        w = w - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).

    Adam has one v per coordinate, and gives a coordinate that the geometric mean shrinks in every round steps
    as long as any other's. Here such a coordinate stays as small, relative to the others of its tensor, as
    the mean made it; the root mean square of a step is that of Adam's, so that Adam's rates suit it.

    If `stacked` is set, the first dimension of every parameter counts models, and each has its own v.
    """

    stacked = False

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)

    def _move(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        """Take one step with one parameter."""
        first, second = group["betas"]
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(self._mean_square(gradient))
        state["step"] += 1
        count = state["step"].item()
        square = self._mean_square(gradient)
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].lerp_(square, 1 - second)
        scale = (state["exp_avg_sq"] / (1 - second**count)).sqrt() + group["eps"]
        parameter.sub_(group["lr"] / (1 - first**count) * state["exp_avg"] / scale)

    def _mean_square(self, gradient: Tensor) -> Tensor:
        """Return the mean of squares over the coordinates of a parameter, or of each model's."""
        # Summed in float64, so that the number of threads does not show after rounding.
        squares = gradient.to(wide_dtype(gradient.device)).square()
        rest = tuple(range(1, gradient.dim()))
        return (squares.mean(rest, keepdim=True) if self.stacked else squares.mean()).to(gradient.dtype)


def __getattr__(name: str) -> type[torch.optim.Optimizer]:
    """Return one of torch's optimisers by its class name; only those named in `algorithms/parts.py`."""
    if name in TORCH_OPTIMIZERS and hasattr(torch.optim, name):
        return without_compiler(getattr(torch.optim, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
