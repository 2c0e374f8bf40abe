"""Where silos come from."""

from fedilc.data.silo import Federation, LossName, Silo

__all__ = ["Federation", "LossName", "Silo"]
