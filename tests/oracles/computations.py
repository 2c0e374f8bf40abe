"""What a silo computes, straight from its examples."""

from __future__ import annotations

from fedilc.aggregation import Aggregator
from fedilc.data import Silo
from fedilc.gradients import SiloComputation, Workbench
from fedilc.penalties import Penalty


def computation_of(
    bench: Workbench,
    silo: Silo,
    environment_size: int | None = None,
    intra: Aggregator | None = None,
    penalty: Penalty | None = None,
) -> SiloComputation:
    x, y = bench.inputs(silo.x), bench.labels(silo.y)
    return SiloComputation(bench, silo.name, x, y, environment_size, intra, penalty=penalty)
