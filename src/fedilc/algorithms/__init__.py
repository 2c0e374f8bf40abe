"""Algorithms by name: `get`, `names`, `register`. This package needs no torch.

>>> names()[0], get("fedavg").optimizer
('fedsgd', 'sgd')
"""

from __future__ import annotations

from fedilc.algorithms.algorithm import WEIGHTS, Algorithm
from fedilc.algorithms.catalogue import CATALOGUE, PAPER
from fedilc.algorithms.parts import LocalSteps, load_plugins
from fedilc.errors import ConfigError, WrongTypeError, nearest


def get(name: str) -> Algorithm:
    """Return the algorithm of a name; the error for an unknown name suggests the nearest.

    >>> get("fedcurv").penalty
    'fishr'
    """
    if name not in names():
        raise ConfigError(f"algorithm {name!r} is unknown{nearest(str(name), CATALOGUE)}")
    return CATALOGUE[name]


def names() -> tuple[str, ...]:
    """Return the names of all algorithms; those of the paper come first."""
    load_plugins()
    return tuple(CATALOGUE)


def register(name: str, algorithm: Algorithm) -> None:
    """Add an algorithm under a new name; silos on other machines need only its parts, not the name."""
    if name in CATALOGUE:
        raise ConfigError(f"there is already an algorithm {name!r}; choose another name")
    if not isinstance(algorithm, Algorithm):
        raise WrongTypeError(
            f"register() was given {type(algorithm).__name__} as {name!r}; give an Algorithm"
        )
    CATALOGUE[name] = algorithm


def find_algorithm(choice: str | Algorithm) -> tuple[str, Algorithm]:
    """Return the name and the entry of an algorithm that is given by either.

    >>> find_algorithm(get("fedsgd"))[0]
    'fedsgd'
    """
    if isinstance(choice, Algorithm):
        known = [name for name, entry in CATALOGUE.items() if entry == choice]
        return (known[0] if known else "custom"), choice
    return choice, get(choice)


__all__ = ["PAPER", "WEIGHTS", "Algorithm", "LocalSteps", "find_algorithm", "get", "names", "register"]
