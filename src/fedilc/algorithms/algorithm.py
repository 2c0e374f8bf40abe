"""The parts of an algorithm: `Algorithm` and `LocalSteps`. This file needs no torch.

Silos count equally, whatever their sizes, as in the paper: a silo of 6 examples moves a mean as far as one
of 2,000. With `weights="examples"`, a mean across silos is a mean over their examples. The weighted geometric
mean has no weights: each silo is one vote for its sign, and one factor of its side's product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from fedilc.errors import ConfigError, nearest

if TYPE_CHECKING:
    from fedilc.aggregation import Aggregator
    from fedilc.config import Options
    from fedilc.penalties import Penalty


WEIGHTS = ("equal", "examples", "group-dro", "afl", "q-ffl")
GRADIENT = "gradient"
ROBUST = ("trimmed-mean", "median")
_ALIASES = {None: "whole", "whole silo": "whole", "wgm": "geometric"}
_MEANS = "fedsgd, fedcurv, fishr-intra-arith, fishr-intra-geo, fedavg"


@dataclass(frozen=True)
class LocalSteps:
    """Steps that a silo takes from the weights w that it is sent; its update is w - w_e.

    The update is aggregated like a gradient. One full-batch step of SGD with rate 1 is the gradient.

    Args:
        steps: how many steps a round has.
        epochs: how many passes over the silo's examples a round has, in place of `steps`.
        batch_size: examples per step, drawn again in every epoch from the run's seed; "all" or None is all.
        optimizer: a torch optimiser by name ("sgd", "adam", ...); its state is reset in every round.
        learning_rate: of that optimiser.
        momentum: of "sgd".
        proximal: mu of FedProx: mu/2 ||w' - w||^2 is added to the loss.
        control_variates: whether gradients are corrected as in SCAFFOLD, by state that the silo keeps.

    Raises:
        ConfigError: if an argument is out of its range, or both steps and epochs are given.

    >>> LocalSteps(epochs=2, batch_size=10).count(examples=25)
    6
    """

    steps: int | None = None
    epochs: int | None = None
    batch_size: int | Literal["all"] | None = None
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    proximal: float = 0.0
    control_variates: bool = False

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise ConfigError("local steps are counted by steps or by epochs; give one of the two")
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", 1)
        for name in ("steps", "epochs", "batch_size"):
            value = getattr(self, name)
            if name == "batch_size" and isinstance(value, str) and value != "all":
                raise ConfigError(f"batch_size={value!r} of local steps is unknown; give a number or 'all'")
            if value not in (None, "all") and value < 1:
                raise ConfigError(f"{name}={value} of local steps must be at least 1")
        if not self.learning_rate > 0:
            raise ConfigError(f"local learning_rate={self.learning_rate} must be greater than 0")
        if self.proximal < 0 or self.momentum < 0:
            raise ConfigError("proximal and momentum of local steps must be at least 0")

    def count(self, examples: int) -> int:
        """Return how many steps a silo of this size takes in a round."""
        if self.epochs is None:
            return self.steps or 1
        return self.epochs * -(-examples // self.batch(examples))

    def batch(self, examples: int) -> int:
        """Return how many examples a step of a silo of this size has."""
        return examples if self.batch_size in (None, "all") else min(int(self.batch_size), examples)


@dataclass(frozen=True)
class Algorithm:
    """How a federation turns gradients into one step.

    Args:
        update: what a silo answers: "gradient", or `LocalSteps(...)`.
        intra: how the environments of one silo become its gradient: "whole" or None (the silo is
            one environment) or an aggregation by name ("mean", "geometric", ...) or object.
        inter: how the silos' updates become one: an aggregation by name or object.
        penalty: what silos match, by name ("fishr", "vrex", "coral", "iga", "irm") or object, or None.
        weights: how much each silo counts in a mean across silos: "equal"; "examples" for n_e/n over the
            silos that answer; weights that follow the silos' losses: "group-dro", "afl", "q-ffl"; or a
            weight for each silo, as in {"a": 2.0, "b": 1.0}. The penalty is a mean over silos in any case.
        optimizer: what the server does with the result: a torch optimiser by its name in lower case, such
            as "adam", "sgd" or "rmsprop"; "fedadam" or "yogi".
        optimizer_options: its options, as in {"momentum": 0.9}.
        summary: one line for tables.
        defaults: settings that a comparison gives the algorithm unless the user sets them, such as a
            learning rate of the server that suits its updates.

    Raises:
        ConfigError: if `update` or `weights` are unknown, or weights are given without a mean.

    >>> Algorithm(intra="geometric", inter="geometric", penalty="fishr").penalty
    'fishr'
    """

    update: str | LocalSteps = GRADIENT
    intra: str | Aggregator | None = "whole"
    inter: str | Aggregator = "mean"
    penalty: str | Penalty | None = None
    weights: str | Mapping[str, float] = "equal"
    optimizer: str = "adam"
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.penalty, str):
            object.__setattr__(self, "penalty", self.penalty.lower())
        for level in ("intra", "inter"):
            choice = getattr(self, level)
            if choice is None or isinstance(choice, str):
                object.__setattr__(self, level, _ALIASES.get(choice, choice))
        if self.update != GRADIENT and not isinstance(self.update, LocalSteps):
            raise ConfigError(f"update={self.update!r} is unknown; give 'gradient' or LocalSteps(...)")
        if isinstance(self.weights, str) and self.weights not in WEIGHTS:
            raise ConfigError(f"weights={self.weights!r} is unknown{nearest(str(self.weights), WEIGHTS)}")
        if self.weights != "equal" and self.inter != "mean":
            inter = self.inter if isinstance(self.inter, str) else type(self.inter).__name__
            raise ConfigError(
                f"weights={self.weights!r} weighs a mean across silos, and inter={inter!r} is not a mean: "
                "silos count equally in it; leave weights out, or choose an algorithm whose inter is 'mean' "
                f"({_MEANS})"
            )

    @property
    def local(self) -> LocalSteps | None:
        """Return the silo's local steps, or None if it answers its gradient."""
        return self.update if isinstance(self.update, LocalSteps) else None

    @property
    def adds_up_in_silo(self) -> bool:
        """Return whether a silo adds the penalty gradient to its own: for a plain mean, or with local steps.

        In a weighted mean it cannot: that weighs the gradients, and never the penalty's terms. In a trimmed
        mean or a median it does, so that a wrong penalty gradient is dropped as a wrong gradient is.
        """
        if self.local is not None or self.is_robust:
            return True
        return self.inter == "mean" and self.weights == "equal"

    @property
    def is_robust(self) -> bool:
        """Return whether silos become one by a trimmed mean or a median, which needs every reply itself."""
        return self.inter in ROBUST or bool(getattr(self.inter, "keeps_values", False))

    def describe(self) -> dict[str, Any]:
        """Return the choices with their settings, as run folders record them."""
        usual = Algorithm()
        choices = {key: _facts(getattr(self, key)) for key in ("intra", "inter", "penalty")}
        for name in ("update", "weights", "optimizer", "optimizer_options"):
            value = getattr(self, name)
            if value != getattr(usual, name):
                choices[name] = asdict(value) if isinstance(value, LocalSteps) else value
        return choices

    def configured(self, options: Options) -> Algorithm:
        """Return the algorithm with those of its parts that the options of a run replace.

        >>> from fedilc.config import Options
        >>> Algorithm().configured(Options(rounds=1, learning_rate=0.1, local_steps=5)).local.steps
        5
        """
        changes = _given(weights=options.weights, penalty=options.penalty, inter=options.inter)
        if self.weights == "examples" and options.inter not in (None, "mean"):
            changes.setdefault("weights", "equal")  # no other aggregation has weights
        if options.optimizer is not None:
            changes |= {"optimizer": options.optimizer, "optimizer_options": {}}
        if options.optimizer_options:
            changes["optimizer_options"] = options.optimizer_options
        local = self._local(options)
        if local is not None:
            changes["update"] = local
        return replace(self, **changes)

    def _local(self, options: Options) -> LocalSteps | None:
        steps, epochs = options.local_steps, options.local_epochs
        if self.local is None and steps is None and epochs is None:
            return None
        rate, optimizer = options.local_learning_rate, options.local_optimizer
        changes = _given(
            batch_size=options.batch_size, optimizer=optimizer, learning_rate=rate, proximal=options.proximal
        )
        if steps is not None or epochs is not None:
            changes |= {"steps": steps, "epochs": epochs}
        return replace(self.local or LocalSteps(), **changes)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _facts(choice: str | Aggregator | Penalty | None) -> Any:
    if choice is None or isinstance(choice, str):
        return choice
    return {"class": type(choice).__name__, **{key: repr(value) for key, value in vars(choice).items()}}
