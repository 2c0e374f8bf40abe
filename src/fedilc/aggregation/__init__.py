"""How many become one. The same aggregators serve inside a silo and across silos."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fedilc.aggregation.base import Accumulation, Aggregate, Aggregator
from fedilc.aggregation.clipping import Clipped, norm_of
from fedilc.aggregation.geometric import WeightedGeometricMean, weighted_geometric_mean
from fedilc.aggregation.masks import AbsoluteGeometricMean, AndMask
from fedilc.aggregation.mean import Mean, Sum
from fedilc.aggregation.sums import Sums, add_up
from fedilc.errors import ConfigError, nearest

AGGREGATORS: dict[str, Callable[..., Aggregator]] = {
    "mean": Mean,
    "geometric": WeightedGeometricMean,
    "wgm": WeightedGeometricMean,
    "absolute-geometric": AbsoluteGeometricMean,
    "and-mask": AndMask,
}


def aggregator_options(choice: str | Aggregator) -> tuple[str, ...]:
    """Return the names of the options that an aggregation takes; an object has taken its own already.

    >>> aggregator_options("geometric"), aggregator_options("mean")
    (('zeros', 'agreement', 'min_side'), ())
    """
    if isinstance(choice, Aggregator):
        return ()
    if choice not in AGGREGATORS:
        raise ConfigError(f"aggregation {choice!r} is unknown{nearest(str(choice), AGGREGATORS)}")
    return tuple(inspect.signature(AGGREGATORS[choice]).parameters)


def build_aggregator(choice: str | Aggregator, **options: Any) -> Aggregator:
    """Return the aggregator of a name with these options, or the object given; refuse options it lacks.

    >>> build_aggregator("geometric", zeros="strict", agreement=0.0).zeros
    'strict'
    >>> build_aggregator("mean", agreement=0.5)
    Traceback (most recent call last):
    fedilc.errors.ConfigError: aggregation 'mean' has no option 'agreement'; it takes none
    """
    known = aggregator_options(choice)
    for key in options:
        if key not in known:
            name = repr(choice) if isinstance(choice, str) else type(choice).__name__
            takes = f"takes {', '.join(known)}" if known else "takes none"
            raise ConfigError(f"aggregation {name} has no option {key!r}; it {takes}")
    return choice if isinstance(choice, Aggregator) else AGGREGATORS[choice](**options)


__all__ = [
    "AGGREGATORS",
    "AbsoluteGeometricMean",
    "Accumulation",
    "Aggregate",
    "Aggregator",
    "AndMask",
    "Clipped",
    "Mean",
    "Sum",
    "Sums",
    "WeightedGeometricMean",
    "add_up",
    "aggregator_options",
    "build_aggregator",
    "norm_of",
    "weighted_geometric_mean",
]
