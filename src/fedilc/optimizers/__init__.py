"""Optimisers by name, for the server and for local steps; each is also a function of its options.

>>> from fedilc import Algorithm
>>> from fedilc.optimizers import Adam
>>> Algorithm(inter="geometric", optimizer=Adam(betas=(0.8, 0.99))).optimizer_options
{'betas': (0.8, 0.99)}
>>> Adam(beta=0.8)
Traceback (most recent call last):
fedilc.errors.ConfigError: optimizer 'adam' has no option 'beta'; it takes betas, eps, amsgrad, ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fedilc.algorithms.parts import OPTIMIZERS, TORCH_OPTIMIZERS, OptimizerChoice

register = OPTIMIZERS.register

__all__ = ["OptimizerChoice", "register"]


def _choice(name: str, **options: Any) -> OptimizerChoice:
    """Return an optimiser with its options; refuse options that it does not take."""
    return OptimizerChoice(name, OPTIMIZERS.checked(name, options))


def __getattr__(name: str) -> Callable[..., OptimizerChoice]:
    """Return what makes the optimiser of a class name, such as `Adam`, with its options."""
    if name in (*TORCH_OPTIMIZERS, "FedAdam", "Yogi", "LayerAdam"):
        return partial(_choice, name.lower())
    raise AttributeError(f"module 'fedilc.optimizers' has no attribute {name!r}")
