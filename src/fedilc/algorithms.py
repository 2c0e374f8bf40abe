"""The catalogue: every algorithm is three choices. This file needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedilc.errors import ConfigError, nearest

if TYPE_CHECKING:
    from fedilc.aggregation import Aggregator


_ALIASES = {None: "whole", "whole silo": "whole", "wgm": "geometric"}


@dataclass(frozen=True)
class Algorithm:
    """How a federation turns gradients into one step.

    Args:
        intra: how the environments of one silo become its gradient: "whole" or None (the silo is
            one environment) or an aggregation by name ("mean", "geometric", ...) or object.
        inter: how the silos' gradients become one: an aggregation by name or object.
        penalty: "fishr" to match the silos' gradient variances, or None.
        summary: one line for tables.

    >>> Algorithm(intra="geometric", inter="geometric", penalty="fishr").two_phase
    True
    """

    intra: str | Aggregator | None = "whole"
    inter: str | Aggregator = "mean"
    penalty: str | None = None
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

    @property
    def two_phase(self) -> bool:
        """Whether a round asks for statistics before it asks for gradients."""
        return self.penalty is not None

    @property
    def adds_up_in_silo(self) -> bool:
        """Whether gradient and Fishr product may travel as one vector: where inter is a mean."""
        return self.inter == "mean"

    def describe(self) -> dict[str, Any]:
        """The three choices with their settings, as run folders record them."""
        return {"intra": _facts(self.intra), "inter": _facts(self.inter), "penalty": self.penalty}


algorithms: dict[str, Algorithm] = {
    "fedsgd": Algorithm(
        summary="arithmetic mean of the silos' gradients",
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
        summary="arithmetic mean over environments inside a silo, with the Fishr penalty",
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


def _facts(choice: str | Aggregator | None) -> Any:
    if choice is None or isinstance(choice, str):
        return choice
    return {"class": type(choice).__name__, **{key: repr(value) for key, value in vars(choice).items()}}
