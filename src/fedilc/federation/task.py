"""What a silo must know of an experiment before the first round; everything else is in requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fedilc.aggregation import Aggregator, Mean
from fedilc.algorithms import Algorithm
from fedilc.data import LossName
from fedilc.penalties import Penalty

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Task:
    """The algorithm's parts, made ready, and the settings of a silo's computation.

    `intra` is the aggregator of environments, None if the silo is one environment. `reduction`
    says whether the penalty is the mean over silos (the paper) or their sum (the authors' code). `max_norm`
    is to which every answer like w is clipped.
    """

    algorithm: Algorithm
    loss: LossName
    intra: Aggregator | None = None
    inter: Aggregator = field(default_factory=Mean)
    penalty: Penalty | None = None
    environment_size: int | None = None
    reduction: Reduction = "mean"
    classifier: str | None = None
    seed: int = 0
    max_norm: float | None = None
