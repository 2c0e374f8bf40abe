"""What silos match. A new penalty is one file here, and one line below."""

from __future__ import annotations

import inspect
from typing import Any

from fedilc.errors import ConfigError, nearest
from fedilc.penalties.base import Penalty, Total
from fedilc.penalties.coral import Coral
from fedilc.penalties.fishr import Fishr
from fedilc.penalties.iga import IGA
from fedilc.penalties.irm import IRM
from fedilc.penalties.vrex import VREx

PENALTIES: dict[str, type[Penalty]] = {
    "fishr": Fishr,
    "vrex": VREx,
    "coral": Coral,
    "iga": IGA,
    "irm": IRM,
}


def build_penalty(choice: str | Penalty, **options: Any) -> Penalty:
    """Return the penalty of a name with those of these options that it takes, or the object given.

    >>> build_penalty("fishr", covariance="full").covariance
    'full'
    """
    if isinstance(choice, Penalty):
        return choice
    if choice not in PENALTIES:
        raise ConfigError(f"penalty={choice!r} is unknown{nearest(str(choice), PENALTIES)}")
    known = inspect.signature(PENALTIES[choice]).parameters
    return PENALTIES[choice](**{key: value for key, value in options.items() if key in known})


__all__ = ["IGA", "IRM", "PENALTIES", "Coral", "Fishr", "Penalty", "Total", "VREx", "build_penalty"]
