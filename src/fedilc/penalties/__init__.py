"""Penalties: statistics that silos match. A new one is a class here and a line in `algorithms/parts.py`."""

from __future__ import annotations

from fedilc.algorithms.parts import PENALTIES
from fedilc.penalties.base import ExampleMean, Penalty, Total
from fedilc.penalties.fishr import Fishr
from fedilc.penalties.other_penalties import IGA, IRM, Coral, VREx

register = PENALTIES.register

__all__ = [
    "IGA",
    "IRM",
    "PENALTIES",
    "Coral",
    "ExampleMean",
    "Fishr",
    "Penalty",
    "Total",
    "VREx",
    "register",
]
