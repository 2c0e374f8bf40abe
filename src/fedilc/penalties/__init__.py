"""What silos match. A new penalty is one file here, and one line below."""

from __future__ import annotations

import inspect
from typing import Any

from fedilc.errors import ConfigError, nearest
from fedilc.penalties.base import Penalty, PenaltySchedule, Total
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


def penalty_options(choice: str | Penalty) -> tuple[str, ...]:
    """Return the names of the options that a penalty takes; an object has taken its own already.

    >>> penalty_options("fishr"), penalty_options("vrex")
    (('covariance',), ())
    """
    if isinstance(choice, Penalty):
        return ()
    if choice not in PENALTIES:
        raise ConfigError(f"penalty={choice!r} is unknown{nearest(str(choice), PENALTIES)}")
    return tuple(inspect.signature(PENALTIES[choice]).parameters)


def build_penalty(choice: str | Penalty, **options: Any) -> Penalty:
    """Return the penalty of a name with these options, or the object given; refuse options it lacks.

    >>> build_penalty("fishr", covariance="full").covariance
    'full'
    >>> build_penalty("vrex", covariance="full")
    Traceback (most recent call last):
    fedilc.errors.ConfigError: penalty 'vrex' has no option 'covariance'; it takes none
    """
    known = penalty_options(choice)
    for key in options:
        if key not in known:
            takes = f"takes {', '.join(known)}" if known else "takes none"
            raise ConfigError(f"penalty {choice!r} has no option {key!r}; it {takes}")
    return choice if isinstance(choice, Penalty) else PENALTIES[choice](**options)


__all__ = [
    "IGA",
    "IRM",
    "PENALTIES",
    "Coral",
    "Fishr",
    "Penalty",
    "PenaltySchedule",
    "Total",
    "VREx",
    "build_penalty",
]
