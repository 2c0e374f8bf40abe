"""Penalties: statistics that silos match. A new penalty is one file here, and one entry below."""

from __future__ import annotations

from fedilc.algorithms.part_registry import PartRegistry
from fedilc.penalties.base import ExampleMean, Penalty, Total
from fedilc.penalties.coral import Coral
from fedilc.penalties.fishr import Fishr
from fedilc.penalties.iga import IGA
from fedilc.penalties.irm import IRM
from fedilc.penalties.vrex import VREx

PENALTIES: dict[str, type[Penalty]] = {"fishr": Fishr, "vrex": VREx, "coral": Coral, "iga": IGA, "irm": IRM}
_PARTS = PartRegistry[Penalty]("penalty", Penalty, PENALTIES)
penalty_options = _PARTS.options
build_penalty = _PARTS.build

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
    "build_penalty",
    "penalty_options",
]
