"""FedILC: train one model over silos that cannot share data, for a site nobody trained on."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedilc import algorithms
from fedilc.algorithms import Algorithm, LocalSteps
from fedilc.errors import FedILCError

if TYPE_CHECKING:
    from fedilc.aggregation import Aggregator, Geometric, weighted_geometric_mean
    from fedilc.api import train
    from fedilc.data import Federation, Silo
    from fedilc.data.silo_store import SiloStore
    from fedilc.penalties import Penalty
    from fedilc.penalties.fishr import Fishr
    from fedilc.sklearn import FedILCClassifier, FedILCRegressor, FedILCSearchCV
    from fedilc.training.callbacks import Callback, EarlyStopping, KeepBest
    from fedilc.training.loaded_model import load
    from fedilc.training.result import Result

__version__ = "0.2.0.dev0"

__all__ = [
    "Aggregator",
    "Algorithm",
    "Callback",
    "EarlyStopping",
    "FedILCClassifier",
    "FedILCError",
    "FedILCRegressor",
    "FedILCSearchCV",
    "Federation",
    "Fishr",
    "Geometric",
    "KeepBest",
    "LocalSteps",
    "Penalty",
    "Result",
    "Silo",
    "SiloStore",
    "__version__",
    "algorithms",
    "load",
    "train",
    "weighted_geometric_mean",
]

_MODULES = {
    "fedilc.aggregation": ("Aggregator", "Geometric", "weighted_geometric_mean"),
    "fedilc.api": ("train",),
    "fedilc.data": ("Federation", "Silo"),
    "fedilc.data.silo_store": ("SiloStore",),
    "fedilc.penalties": ("Penalty",),
    "fedilc.penalties.fishr": ("Fishr",),
    "fedilc.sklearn": ("FedILCClassifier", "FedILCRegressor", "FedILCSearchCV"),
    "fedilc.training.callbacks": ("Callback", "EarlyStopping", "KeepBest"),
    "fedilc.training.loaded_model": ("load",),
    "fedilc.training.result": ("Result",),
}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use, so that the command starts at once."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
