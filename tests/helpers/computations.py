"""What a silo computes, straight from its examples."""

from __future__ import annotations

from fedilc.aggregation import Aggregator
from fedilc.data import Silo
from fedilc.gradients import ModelRunner, SiloComputation
from fedilc.penalties import Penalty


def computation_of(
    runner: ModelRunner,
    silo: Silo,
    environment_size: int | None = None,
    intra: Aggregator | None = None,
    penalty: Penalty | None = None,
) -> SiloComputation:
    x, y = runner.inputs(silo.x), runner.labels(silo.y)
    return SiloComputation(runner, silo.name, x, y, environment_size, intra, penalty=penalty)
