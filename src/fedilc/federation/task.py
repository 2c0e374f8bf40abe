"""What a silo must know of an experiment before the first round; everything else is in requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedilc.aggregation import Aggregator
from fedilc.algorithms import Algorithm
from fedilc.data import LossName
from fedilc.gradients import Covariance

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Task:
    """The settings of a silo's computation.

    `intra` is the aggregator of environments, None where the silo is one environment. `reduction`
    says whether the Fishr loss is the mean over silos (the paper) or their sum (the authors' code).
    """

    algorithm: Algorithm
    loss: LossName
    intra: Aggregator | None = None
    environment_size: int | None = None
    covariance: Covariance = "diagonal"
    reduction: Reduction = "mean"
    classifier: str | None = None
    seed: int = 0
