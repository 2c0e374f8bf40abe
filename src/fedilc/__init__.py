"""FedILC: train one model over silos that cannot share data, for a site nobody trained on."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedilc.algorithms import Algorithm, algorithms

if TYPE_CHECKING:
    from fedilc.aggregation import weighted_geometric_mean
    from fedilc.data import Federation, Silo
    from fedilc.training import Result, train

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Federation",
    "Result",
    "Silo",
    "__version__",
    "algorithms",
    "train",
    "weighted_geometric_mean",
]

_HOMES = {
    "Federation": "fedilc.data",
    "Result": "fedilc.training",
    "Silo": "fedilc.data",
    "train": "fedilc.training",
    "weighted_geometric_mean": "fedilc.aggregation",
}


def __getattr__(name: str) -> Any:
    """Load what needs torch only when it is asked for, so that the command starts at once."""
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fedilc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
