"""The kinds of parts, the built-in parts by name, and the one place that routes options to parts.

This file needs no torch. A built-in part is a class in its own folder and one line here; a part of another
package needs no line here (see `registry.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, ValidationError

from fedilc.algorithms.registry import PartRegistry, check_value, load_plugins
from fedilc.errors import ConfigError
from fedilc.section import Section, first_mistake

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from fedilc.aggregation import Aggregator
    from fedilc.penalties import Penalty

AGGREGATORS: PartRegistry[Aggregator] = PartRegistry(
    "aggregation",
    "fedilc.aggregation.base:Aggregator",
    {
        "mean": ("fedilc.aggregation.mean:Mean", "arithmetic mean"),
        "geometric": (
            "fedilc.aggregation.geometric:WeightedGeometricMean",
            "weighted geometric mean: one per sign, weighted by the share of the sign",
        ),
        "absolute-geometric": (
            "fedilc.aggregation.mean:AbsoluteGeometricMean",
            "geometric mean of magnitudes, with the sign of the mean",
        ),
        "and-mask": ("fedilc.aggregation.mean:AndMask", "mean of coordinates whose signs agree"),
        "trimmed-mean": (
            "fedilc.aggregation.order_statistics:TrimmedMean",
            "mean without the smallest and largest values of each coordinate",
        ),
        "median": ("fedilc.aggregation.order_statistics:Median", "median of each coordinate"),
    },
)
PENALTIES: PartRegistry[Penalty] = PartRegistry(
    "penalty",
    "fedilc.penalties.base:Penalty",
    {
        "fishr": ("fedilc.penalties.fishr:Fishr", "match the variance of the classifier's gradients"),
        "vrex": ("fedilc.penalties.other_penalties:VREx", "match mean losses"),
        "coral": ("fedilc.penalties.other_penalties:Coral", "match mean and covariance of the features"),
        "iga": ("fedilc.penalties.other_penalties:IGA", "match mean gradients"),
        "irm": (
            "fedilc.penalties.other_penalties:IRM",
            "make one scale of the logits optimal in every silo",
        ),
    },
    plural="penalties",
)
# All of torch's except LBFGS, which computes losses itself, SparseAdam, which takes only sparse gradients,
# and Muon, which takes only matrices. Only these names: one from a network must not reach another class.
TORCH_OPTIMIZERS = {
    "SGD": ", with momentum if asked",
    "Adam": "; weight decay is its L2 form",
    "AdamW": ": Adam with decoupled weight decay",
    "Adafactor": ", from torch 2.5",
    **dict.fromkeys(("Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"), ""),
}
OPTIMIZERS: PartRegistry[Optimizer] = PartRegistry(
    "optimizer",
    "torch.optim:Optimizer",
    {
        **{
            name.lower(): (f"fedilc.optimizers.optimizers:{name}", f"torch.optim.{name}{more}")
            for name, more in TORCH_OPTIMIZERS.items()
        },
        "fedadam": ("fedilc.optimizers.optimizers:FedAdam", "Adam without bias correction"),
        "layeradam": (
            "fedilc.optimizers.optimizers:LayerAdam",
            "Adam with one second moment per parameter tensor",
        ),
        "newton": ("fedilc.gradients.newton:Newton", "Newton's method, for linear models"),
        "yogi": ("fedilc.optimizers.optimizers:Yogi", "Adam whose second moment changes additively"),
    },
    reserved=("params", "lr", "weight_decay"),
)
Reduction = Literal["mean", "sum"]
LEVELS: dict[str, PartRegistry[Any]] = {"intra": AGGREGATORS, "inter": AGGREGATORS, "penalty": PENALTIES}
REGISTRIES: tuple[PartRegistry[Any], ...] = (AGGREGATORS, PENALTIES, OPTIMIZERS)


@dataclass(frozen=True)
class OptimizerChoice:
    """An optimiser with its options, for `Algorithm(optimizer=...)`; see `fedilc.optimizers`."""

    name: str
    options: Mapping[str, Any]


class LocalSteps(Section):
    """Local steps, which a silo takes from the weights w of the server to its own w_e; its update is w - w_e.

    The update is aggregated like a gradient. After one full-batch step of SGD with rate 1 it is the gradient.

    Args:
        steps: number of steps per round.
        epochs: number of passes over the silo's examples per round, in place of `steps`.
        batch_size: examples per step, drawn anew in every epoch from the run's seed; "all" or None is all.
        optimizer: optimiser for local steps by name ("sgd", "adam", ...); its state is reset in every round.
        learning_rate: learning rate for local steps.
        momentum: momentum of "sgd".
        proximal: mu of FedProx: mu/2 ||w' - w||^2 is added to the loss.
        control_variates: whether gradients are corrected as in SCAFFOLD, by state that the silo keeps.

    Raises:
        ConfigError: if an argument is out of its range, or both steps and epochs are given.

    >>> LocalSteps(epochs=2, batch_size=10).count(examples=25)
    6
    """

    FLAT: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "local_steps": "steps",
            "local_epochs": "epochs",
            "batch_size": "batch_size",
            "local_optimizer": "optimizer",
            "local_learning_rate": "learning_rate",
            "local_momentum": "momentum",
            "proximal": "proximal",
        }
    )

    steps: PositiveInt | None = None
    epochs: PositiveInt | None = None
    batch_size: PositiveInt | Literal["all"] | None = None
    optimizer: str = Field("sgd", max_length=500)
    learning_rate: float = Field(0.1, gt=0)
    momentum: float = Field(0.0, ge=0)
    proximal: float = Field(0.0, ge=0)
    control_variates: bool = False

    def __init__(self, **given: Any) -> None:
        steps, epochs = given.get("steps"), given.get("epochs")
        if steps is not None and epochs is not None:
            raise ConfigError("local steps take a number of steps or of epochs; give one of the two")
        if steps is None and epochs is None:
            given = {**given, "steps": 1}
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ConfigError(f"local steps: {first_mistake(error, type(self).model_fields)}") from error

    def count(self, examples: int) -> int:
        """Return how many steps a silo with this many examples takes per round."""
        if self.epochs is None:
            return self.steps or 1
        return self.epochs * -(-examples // self.batch(examples))

    def batch(self, examples: int) -> int:
        """Return how many examples each step of such a silo has."""
        return examples if self.batch_size in (None, "all") else min(int(self.batch_size), examples)


class PenaltyOptions(Section):
    """The options of every penalty, declared here so that an experiment that sets one is read without torch.

    Args:
        reduction: reduction of the penalty over silos: "mean", as in the paper, or "sum", as in its authors'
            code.
    """

    reduction: Reduction = "mean"


def option_names() -> list[str]:
    """Return the names of all options that parts declare, each once."""
    own = [key for r in REGISTRIES for name in r.names() for key in r.declared(name)]
    return list(dict.fromkeys([*LocalSteps.FLAT, *own]))


def check_option(option: str, value: Any) -> bool:
    """Return whether a part declares an option; raise if no part that declares it accepts the value."""
    if option in LocalSteps.FLAT:
        check_value(option, LocalSteps.model_fields[LocalSteps.FLAT[option]], value)
        return True
    if option in PenaltyOptions.model_fields:
        check_value(option, PenaltyOptions.model_fields[option], value)
        return True
    mistake = None
    for registry in REGISTRIES:
        for name in registry.names():
            try:
                if registry.accepts(name, option, value):
                    return True
            except ConfigError as error:
                mistake = mistake or error
    if mistake is not None:
        raise mistake
    return False


def taken(registry: PartRegistry[Any], choice: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run that a part declares; every option reaches its part in this way."""
    known = registry.options(choice) if options else ()
    return {key: value for key, value in options.items() if key in known}


__all__ = [
    "AGGREGATORS",
    "LEVELS",
    "OPTIMIZERS",
    "PENALTIES",
    "REGISTRIES",
    "TORCH_OPTIMIZERS",
    "LocalSteps",
    "OptimizerChoice",
    "PenaltyOptions",
    "Reduction",
    "check_option",
    "load_plugins",
    "option_names",
    "taken",
]
