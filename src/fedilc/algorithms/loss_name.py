"""The losses by name. This file needs no torch."""

from __future__ import annotations

from typing import Literal

LossName = Literal["binary", "multiclass", "regression", "huber"]


def has_classes(loss: LossName) -> bool:
    """Return whether labels are class numbers, rather than quantities.

    >>> has_classes("multiclass"), has_classes("huber")
    (True, False)
    """
    return loss in ("binary", "multiclass")
