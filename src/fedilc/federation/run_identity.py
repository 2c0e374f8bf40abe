"""Check that a run folder belongs to the run that is to be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedilc.errors import CheckpointError

_NOT_IDENTITY = ("rounds", "device", "machines", "on_divergence", "outlier_factor")
_DERIVED = ("model", "silos", "test")  # checked last: they may differ only because a setting does


def require_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise if settings or data differ from those of the run in `path`; name the first difference."""
    for key in sorted(set(before) | set(now), key=lambda key: (key in _DERIVED, key)):
        if key in _NOT_IDENTITY or before.get(key) == now.get(key):
            continue
        if key in ("silos", "test"):
            whose = _whose(before.get(key), now.get(key))
            raise CheckpointError(
                f"the data of {whose} differ from those of the run in {path}; restore the data, or choose "
                "another folder"
            )
        where, old, new = _difference(key, before.get(key), now.get(key))
        raise CheckpointError(
            f"{path} belongs to another configuration: {where} was {_short(old)} there and is {_short(new)} "
            "here; resume with the same settings, or choose another folder"
        )


def _whose(before: Any, now: Any) -> str:
    """Return the first silo whose data differ, or the test set."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return "the test set"
    return next(f"silo {name!r}" for name in [*before, *now] if before.get(name) != now.get(name))


def _difference(where: str, old: object, new: object) -> tuple[str, object, object]:
    """Return the first place, inside nested objects too, at which two values differ.

    >>> _difference("model", {"layers": "a", "weights": 1}, {"layers": "a", "weights": 2})
    ('model.weights', 1, 2)
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                return _difference(f"{where}.{key}", old.get(key), new.get(key))
    return where, old, new


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
