"""Aggregations: how many gradients become one, inside a silo and across silos alike."""

from __future__ import annotations

from collections.abc import Callable

from fedilc.aggregation.base import Accumulation, Aggregate, Aggregator
from fedilc.aggregation.clipping import Clipped, norm_of
from fedilc.aggregation.geometric import WeightedGeometricMean, weighted_geometric_mean
from fedilc.aggregation.masks import AbsoluteGeometricMean, AndMask
from fedilc.aggregation.mean import Mean, Sum
from fedilc.aggregation.order_statistics import KeptValues, Median, TrimmedMean
from fedilc.aggregation.sums.state import Sums, add_up
from fedilc.algorithms.part_registry import PartRegistry

AGGREGATORS: dict[str, Callable[..., Aggregator]] = {
    "mean": Mean,
    "geometric": WeightedGeometricMean,
    "wgm": WeightedGeometricMean,
    "absolute-geometric": AbsoluteGeometricMean,
    "and-mask": AndMask,
    "trimmed-mean": TrimmedMean,
    "median": Median,
}
_PARTS = PartRegistry[Aggregator]("aggregation", Aggregator, AGGREGATORS)
aggregator_options = _PARTS.options
build_aggregator = _PARTS.build

__all__ = [
    "AGGREGATORS",
    "AbsoluteGeometricMean",
    "Accumulation",
    "Aggregate",
    "Aggregator",
    "AndMask",
    "Clipped",
    "KeptValues",
    "Mean",
    "Median",
    "Sum",
    "Sums",
    "TrimmedMean",
    "WeightedGeometricMean",
    "add_up",
    "aggregator_options",
    "build_aggregator",
    "norm_of",
    "weighted_geometric_mean",
]
