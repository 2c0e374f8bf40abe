"""Aggregations: how many gradients become one, over the environments of a silo and across silos."""

from __future__ import annotations

from fedilc.aggregation.base import Accumulation, Aggregate, Aggregator, Clipped, norm_of
from fedilc.aggregation.geometric import Geometric, WeightedGeometricMean, weighted_geometric_mean
from fedilc.aggregation.mean import AbsoluteGeometricMean, AndMask, Mean, Sum
from fedilc.aggregation.order_statistics import KeptValues, Median, TrimmedMean
from fedilc.aggregation.packed_sums import Sums, add_up
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
    "Geometric",
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
