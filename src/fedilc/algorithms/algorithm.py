"""`Algorithm`: a choice of parts. This file needs no torch.

Silos count equally, whatever their sizes, as in the paper: a silo with 6 examples moves a mean as far as one
with 2,000. With `silo_weights="examples"`, a mean across silos is a mean over their examples. The weighted
geometric mean has no weights: each silo is one vote for a sign, and one factor of the product of that sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedilc.algorithms.parts import (
    AGGREGATORS,
    LEVELS,
    OPTIMIZERS,
    LocalSteps,
    OptimizerChoice,
    PenaltyOptions,
    taken,
)
from fedilc.algorithms.registry import PartRegistry
from fedilc.errors import ConfigError, nearest

if TYPE_CHECKING:
    from fedilc.aggregation import Aggregator
    from fedilc.config import Options
    from fedilc.penalties import Penalty


WEIGHTS = ("equal", "examples", "group-dro", "afl", "q-ffl")
GRADIENT, NEWTON = "gradient", "newton"
ROBUST = ("trimmed-mean", "median")
_ALIASES = {None: "whole", "whole silo": "whole", "wgm": "geometric"}
_MEANS = "fedsgd, fedcurv, fishr-intra-arith, fishr-intra-geo, fedavg"


@dataclass(frozen=True)
class Algorithm:
    """The parts that turn the gradients of silos into one step of the server.

    Args:
        update: what a silo answers: "gradient"; "newton" for gradient and Hessian of a linear model; or
            `LocalSteps(...)` for the change of w after local steps.
        intra: aggregation over the environments of one silo: "whole" or None (the silo is one environment),
            or an aggregation by name ("mean", "geometric", ...) or as an object.
        inter: aggregation across silos, by name or as an object.
        penalty: penalty by name ("fishr", "vrex", "coral", "iga", "irm") or as an object, or None.
        silo_weights: silo weighting in a mean across silos: "equal"; "examples" for n_e/n over the silos that
            answer; "group-dro", "afl" or "q-ffl" for weights that follow the silos' losses; or one number per
            silo, as in {"a": 2.0, "b": 1.0}. The penalty is always a plain mean over silos.
        optimizer: optimiser of the server: a torch optimiser by its name in lower case, such
            as "adam", "sgd" or "rmsprop"; "fedadam", "yogi" or "layeradam"; or one with its options, as in
            `fedilc.optimizers.Adam(betas=(0.8, 0.99))`.
        optimizer_options: options of that optimiser, as in {"momentum": 0.9}.
        summary: one line for tables.
        defaults: options of its parts unless the user sets them, such as the agreement of a geometric mean;
            and settings for comparisons, such as a server learning rate that suits its updates.
        losses: names of the losses that it supports; empty for all.
        weights: former name of `silo_weights`, which the constructor still takes.

    Raises:
        ConfigError: if `update` or `silo_weights` are unknown, or weights are given without a mean.

    >>> Algorithm(intra="geometric", inter="geometric", penalty="fishr").penalty
    'fishr'
    """

    update: str | LocalSteps = GRADIENT
    intra: str | Aggregator | None = "whole"
    inter: str | Aggregator = "mean"
    penalty: str | Penalty | None = None
    silo_weights: str | Mapping[str, float] = "equal"
    optimizer: str | OptimizerChoice = "adam"
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    losses: tuple[str, ...] = ()
    weights: InitVar[str | Mapping[str, float] | None] = None

    def __post_init__(self, weights: str | Mapping[str, float] | None) -> None:
        if weights is not None:
            object.__setattr__(self, "silo_weights", weights)
        if isinstance(self.optimizer, OptimizerChoice):
            object.__setattr__(self, "optimizer_options", self.optimizer.options)
            object.__setattr__(self, "optimizer", self.optimizer.name)
        if isinstance(self.penalty, str):
            object.__setattr__(self, "penalty", self.penalty.lower())
        for level in ("intra", "inter"):
            choice = getattr(self, level)
            if choice is None or isinstance(choice, str):
                object.__setattr__(self, level, _ALIASES.get(choice, choice))
        if self.update not in (GRADIENT, NEWTON) and not isinstance(self.update, LocalSteps):
            raise ConfigError(
                f"update={self.update!r} is unknown; give 'gradient', 'newton' or LocalSteps(...)"
            )
        if self.is_newton and (self.votes or not self.takes_mean or self.penalty is not None):
            raise ConfigError(
                "update='newton' adds up gradients and Hessians, so it takes no intra, inter or penalty"
            )
        if self.is_newton != (self.optimizer == NEWTON):
            raise ConfigError(
                "update='newton' and optimizer='newton' belong together; choose 'logistic' or 'ridge'"
            )
        require_weights(self.silo_weights)
        if self.silo_weights != "equal" and not self.takes_mean:
            raise ConfigError(
                f"silo_weights={self.silo_weights!r} needs a mean across silos, but "
                f"inter={self.name('inter')!r} is not a mean and counts silos equally; leave silo_weights "
                f"out, or choose an algorithm whose inter is 'mean' ({_MEANS})"
            )

    @property
    def is_newton(self) -> bool:
        """Return whether silos answer the gradient and the Hessian of a linear model."""
        return self.update == NEWTON

    @property
    def local(self) -> LocalSteps | None:
        """Return the local steps of silos; None if they answer gradients."""
        return self.update if isinstance(self.update, LocalSteps) else None

    @property
    def votes(self) -> bool:
        """Return whether the environments of a silo vote; if not, the silo is one environment."""
        return self.intra not in (None, "whole")

    @property
    def parts(self) -> dict[str, Any]:
        """Return the aggregations and the penalty that it has, by level, as names or objects."""
        levels = {"intra": self.intra if self.votes else None, "inter": self.inter, "penalty": self.penalty}
        return {level: choice for level, choice in levels.items() if choice is not None}

    @cached_property
    def adds_up_in_silo(self) -> bool:
        """Return whether a silo adds the penalty gradient to its own gradient.

        It does with local steps and in a plain mean. In a weighted mean it cannot, because weights apply to
        gradients and never to the penalty's terms. In a trimmed mean or a median it does, so that a wrong
        penalty gradient is dropped like a wrong gradient.
        """
        if self.local is not None or self.is_robust:
            return True
        return self.takes_mean and self.silo_weights == "equal"

    @cached_property
    def takes_mean(self) -> bool:
        """Return whether silos are aggregated by the arithmetic mean, given by name or as an object."""
        return AGGREGATORS.name_of(self.inter) == "mean"

    @property
    def is_robust(self) -> bool:
        """Return whether silos are aggregated by a trimmed mean or a median, which keeps every reply."""
        return self.inter in ROBUST or bool(getattr(self.inter, "keeps_values", False))

    def name(self, level: str) -> str:
        """Return the name of a part, or of its class if the class is not registered."""
        choice = getattr(self, level)
        return LEVELS[level].name_of(choice) or type(choice).__name__

    def describe(self) -> dict[str, Any]:
        """Return each part as its name and all its options, and other choices that differ from the defaults.

        Run folders record this. A part whose class is not registered is described by its class and its
        attributes as text: it can be recorded, but not sent.
        """
        usual = Algorithm()
        choices: dict[str, Any] = dict.fromkeys(LEVELS)
        choices |= {level: _description(LEVELS[level], part) for level, part in self.built().parts.items()}
        for name in ("update", "silo_weights", "optimizer", "optimizer_options"):
            value = getattr(self, name)
            if value != getattr(usual, name):
                choices[name] = value.model_dump() if isinstance(value, LocalSteps) else value
        return choices

    def describe_for_silos(self) -> dict[str, Any]:
        """Return what silos must know; from this, `described` makes an algorithm with equal parts.

        Raises:
            ConfigError: if the class of a part is not registered, so that silos could not find it.
        """
        choices = {"update": self.update, "silo_weights": self.silo_weights} | self.describe()
        for level in LEVELS:
            if choices[level] is not None and "name" not in choices[level]:
                raise ConfigError(
                    f"{level} of the algorithm cannot be sent, because {choices[level]['class']} has no "
                    "name; register its class under one, here and at every silo"
                )
        return {key: choices[key] for key in (*LEVELS, "update", "silo_weights")}

    @classmethod
    def described(cls, choices: Mapping[str, Any]) -> Algorithm:
        """Return the algorithm that `describe_for_silos` describes, with its parts as objects.

        Parts are found by name in this installation; the server's optimiser is not among them.

        >>> Algorithm.described(Algorithm(inter="geometric").describe_for_silos()).inter.zeros
        'ignore'
        """
        update = choices["update"]
        built = {
            level: LEVELS[level].build(**choices[level]) for level in LEVELS if choices[level] is not None
        }
        return cls(
            update=LocalSteps(**update) if isinstance(update, Mapping) else update,
            silo_weights=choices["silo_weights"],
            optimizer=NEWTON if update == NEWTON else "adam",
            **built,
        )

    def built(self, options: Mapping[str, Any] = MappingProxyType({})) -> Algorithm:
        """Return the algorithm with its parts as objects, each with the options that it declares.

        A part that is given by name has the algorithm's defaults, unless the options set them.

        >>> Algorithm(inter="geometric").built({"zeros": "strict"}).inter.zeros
        'strict'
        >>> Algorithm(inter="geometric", defaults={"agreement": 0.5}).built().inter.agreement
        0.5
        """
        found = {}
        for level, part in self.parts.items():
            given = {**self.defaults, **options} if isinstance(part, str) else options
            found[level] = LEVELS[level].build(part, **taken(LEVELS[level], part, given))
        return replace(self, **found)

    def configured(self, options: Options) -> Algorithm:
        """Return the algorithm with the parts that the options of a run choose in place of its own.

        >>> from fedilc.config import Options
        >>> Algorithm().configured(Options(rounds=1, learning_rate=0.1, local_steps=5)).local.steps
        5
        """
        changes = _given(silo_weights=options.silo_weights, penalty=options.penalty, inter=options.inter)
        if self.silo_weights == "examples" and options.inter not in (None, "mean"):
            changes.setdefault("silo_weights", "equal")  # no other aggregation has weights
        if options.optimizer is not None:
            changes |= {"optimizer": options.optimizer, "optimizer_options": {}}
        if options.optimizer_options:
            changes["optimizer_options"] = options.optimizer_options
        optimizer = changes.get("optimizer", self.optimizer)
        given = {k: v for k, v in options.part_options.items() if k not in PenaltyOptions.model_fields}
        flat = taken(OPTIMIZERS, optimizer, given)
        if flat:
            changes["optimizer_options"] = {
                **changes.get("optimizer_options", self.optimizer_options),
                **flat,
            }
        local = self._local(options)
        if local is not None:
            changes["update"] = local
        found = replace(self, **changes)
        for level, choice in found.parts.items() if given else ():
            LEVELS[level].checked(choice, taken(LEVELS[level], choice, given))
        return found

    def _local(self, options: Options) -> LocalSteps | None:
        given = options.part_options
        flat = {name: given[key] for key, name in LocalSteps.FLAT.items() if key in given}
        counted = flat.keys() & {"steps", "epochs"}
        if self.local is None and not counted:
            return None
        own = (
            {}
            if self.local is None
            else self.local.model_dump(exclude={"steps", "epochs"} if counted else None)
        )
        return LocalSteps(**{**own, **flat})


def require_weights(weights: object) -> None:
    """Raise if weights of silos are neither the name of a rule nor a number above 0 for each silo."""
    if isinstance(weights, Mapping):
        numbers = list(weights.values())
        if numbers and all(
            isinstance(n, int | float) and not isinstance(n, bool) and 0 < n < inf for n in numbers
        ):
            return
    elif weights in WEIGHTS:
        return
    hint = nearest(weights, WEIGHTS) if isinstance(weights, str) else ""
    raise ConfigError(
        f"silo_weights={weights!r} is not valid: give one of {', '.join(WEIGHTS)}, or a number above 0 for "
        f"each silo, as in {{a = 2.0, b = 1.0}}{hint}"
    )


def _description(registry: PartRegistry[Any], part: object) -> dict[str, Any]:
    unnamed = {"class": type(part).__name__} | {key: repr(value) for key, value in vars(part).items()}
    return registry.describe(part) or unnamed


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
