"""Aggregations: how many gradients become one, inside a silo and across silos alike."""

from __future__ import annotations

from fedilc.aggregation.base import Accumulation, Aggregate, Aggregator
from fedilc.aggregation.clipping import Clipped, norm_of
from fedilc.aggregation.geometric import WeightedGeometricMean, weighted_geometric_mean
from fedilc.aggregation.masks import AbsoluteGeometricMean, AndMask
from fedilc.aggregation.mean import Mean, Sum
from fedilc.aggregation.order_statistics import KeptValues, Median, TrimmedMean
from fedilc.aggregation.sums.state import Sums, add_up
from fedilc.algorithms.parts import AGGREGATORS

register = AGGREGATORS.register

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
    "norm_of",
    "register",
    "weighted_geometric_mean",
]
