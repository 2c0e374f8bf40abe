"""How many become one. The same aggregators serve inside a silo and across silos."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fedilc.aggregation.base import Accumulation, Aggregate, Aggregator, Sums
from fedilc.aggregation.geometric import WeightedGeometricMean, weighted_geometric_mean
from fedilc.aggregation.masks import AbsoluteGeometricMean, AndMask
from fedilc.aggregation.mean import Mean, Sum
from fedilc.errors import ConfigError, nearest

AGGREGATORS: dict[str, Callable[..., Aggregator]] = {
    "mean": Mean,
    "geometric": WeightedGeometricMean,
    "wgm": WeightedGeometricMean,
    "absolute-geometric": AbsoluteGeometricMean,
    "and-mask": AndMask,
}


def build_aggregator(choice: str | Aggregator, **options: Any) -> Aggregator:
    """The aggregator of a name with those of the options it knows, or the one given.

    >>> build_aggregator("geometric", zeros="strict", agreement=0.0).zeros
    'strict'
    """
    if isinstance(choice, Aggregator):
        return choice
    if choice not in AGGREGATORS:
        raise ConfigError(f"aggregation {choice!r} is unknown{nearest(str(choice), AGGREGATORS)}")
    make = AGGREGATORS[choice]
    known = inspect.signature(make).parameters
    return make(**{key: value for key, value in options.items() if key in known})


__all__ = [
    "AGGREGATORS",
    "AbsoluteGeometricMean",
    "Accumulation",
    "Aggregate",
    "Aggregator",
    "AndMask",
    "Mean",
    "Sum",
    "Sums",
    "WeightedGeometricMean",
    "build_aggregator",
    "weighted_geometric_mean",
]
