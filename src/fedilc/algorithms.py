"""The catalogue: every algorithm is a few choices. This file needs no torch.

Silos count equally, whatever their sizes, as in the paper: a silo of 6 examples moves a mean as far as one
of 2,000. `weights="examples"` makes a mean across silos one over their examples. The weighted geometric mean
has no such choice: each silo is one vote for its sign, and one factor of its side's product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedilc.errors import ConfigError, nearest

if TYPE_CHECKING:
    from fedilc.aggregation import Aggregator


WEIGHTS = ("equal", "examples")
_ALIASES = {None: "whole", "whole silo": "whole", "wgm": "geometric"}


@dataclass(frozen=True)
class Algorithm:
    """How a federation turns gradients into one step.

    Args:
        intra: how the environments of one silo become its gradient: "whole" or None (the silo is
            one environment) or an aggregation by name ("mean", "geometric", ...) or object.
        inter: how the silos' gradients become one: an aggregation by name or object.
        penalty: "fishr" to match the silos' gradient variances, or None.
        weights: how much each silo counts in a mean across silos: "equal", or "examples" for
            n_e/n over the silos that answer. The penalty is a mean over silos in either case.
        summary: one line for tables.

    >>> Algorithm(intra="geometric", inter="geometric", penalty="fishr").two_phase
    True
    """

    intra: str | Aggregator | None = "whole"
    inter: str | Aggregator = "mean"
    penalty: str | None = None
    weights: str = "equal"
    summary: str = ""

    def __post_init__(self) -> None:
        penalty = self.penalty.lower() if isinstance(self.penalty, str) else self.penalty
        if penalty not in ("fishr", None):
            raise ConfigError(f"penalty={self.penalty!r} is unknown; choose 'fishr' or None")
        object.__setattr__(self, "penalty", penalty)
        for level in ("intra", "inter"):
            choice = getattr(self, level)
            if choice is None or isinstance(choice, str):
                object.__setattr__(self, level, _ALIASES.get(choice, choice))
        if self.weights not in WEIGHTS:
            raise ConfigError(f"weights={self.weights!r} is unknown{nearest(str(self.weights), WEIGHTS)}")
        if self.weights == "examples" and self.inter != "mean":
            inter = self.inter if isinstance(self.inter, str) else type(self.inter).__name__
            raise ConfigError(
                f"weights='examples' weighs a mean across silos, and inter={inter!r} is none: silos count "
                "equally in it; leave weights out, or choose an algorithm whose inter is 'mean' (fedsgd, "
                "fedcurv, fishr-intra-arith, fishr-intra-geo)"
            )

    @property
    def two_phase(self) -> bool:
        """Whether a round asks for statistics before it asks for gradients."""
        return self.penalty is not None

    @property
    def adds_up_in_silo(self) -> bool:
        """Whether gradient and Fishr product may travel as one vector: if inter is a plain mean.

        In a mean over examples they cannot: it weighs the gradients, and never the penalty's terms.
        """
        return self.inter == "mean" and self.weights == "equal"

    def describe(self) -> dict[str, Any]:
        """Return the choices with their settings, as run folders record them."""
        choices = {"intra": _facts(self.intra), "inter": _facts(self.inter), "penalty": self.penalty}
        return choices if self.weights == "equal" else choices | {"weights": self.weights}


algorithms: dict[str, Algorithm] = {
    "fedsgd": Algorithm(
        summary="arithmetic mean of the silos' gradients; each silo counts equally, whatever its size",
    ),
    "geometric": Algorithm(
        inter="geometric",
        summary="weighted geometric mean of the silos' gradients",
    ),
    "fedcurv": Algorithm(
        penalty="fishr",
        summary="arithmetic mean, with the Fishr penalty",
    ),
    "fishr-intra-arith": Algorithm(
        intra="mean",
        penalty="fishr",
        summary="mean over environments inside a silo, with Fishr; fedcurv if they are of one size",
    ),
    "fishr-inter-geo": Algorithm(
        inter="geometric",
        penalty="fishr",
        summary="weighted geometric mean across silos, with the Fishr penalty",
    ),
    "fishr-intra-geo": Algorithm(
        intra="geometric",
        penalty="fishr",
        summary="weighted geometric mean over environments inside a silo, with the Fishr penalty",
    ),
}


def find_algorithm(choice: str | Algorithm) -> tuple[str, Algorithm]:
    """The name and the entry of an algorithm; an unknown name suggests the nearest.

    >>> find_algorithm("fedcurv")[1].penalty
    'fishr'
    """
    if isinstance(choice, Algorithm):
        known = [name for name, entry in algorithms.items() if entry == choice]
        return (known[0] if known else "custom"), choice
    if choice not in algorithms:
        raise ConfigError(f"algorithm {choice!r} is unknown{nearest(str(choice), algorithms)}")
    return choice, algorithms[choice]


def with_weights(algorithm: Algorithm, weights: str | None) -> Algorithm:
    """Return the algorithm with these weights, or as it is where none are given.

    >>> with_weights(algorithms["fedsgd"], "examples").weights
    'examples'
    """
    return algorithm if weights is None else replace(algorithm, weights=weights)


def _facts(choice: str | Aggregator | None) -> Any:
    if choice is None or isinstance(choice, str):
        return choice
    return {"class": type(choice).__name__, **{key: repr(value) for key, value in vars(choice).items()}}
