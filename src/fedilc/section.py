"""Validated settings: `Section`, the base of every settings object, and errors about them in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fedilc.errors import ConfigError, nearest

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # pydantic's names, for models and dataclasses
SENTENCE = "sentence"  # the type of an error whose message is already a whole sentence


class Section(BaseModel):
    """Settings that refuse unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Validated = TypeVar("Validated", bound=BaseModel)


def validated(kind: type[Validated], values: Mapping[str, Any], where: str = "") -> Validated:
    """Return a validated section of settings, or raise one sentence about the first mistake.

    >>> from fedilc.config import Options
    >>> validated(Options, {"rounds": 0, "learning_rate": 0.1})
    Traceback (most recent call last):
    fedilc.errors.ConfigError: rounds=0 is not valid: input should be greater than or equal to 1
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}={values!r} is not a section; set its keys, as in {where}.name=...")
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(first_mistake(error, kind.model_fields, where)) from error


def first_mistake(error: ValidationError, known: Iterable[str], where: str = "") -> str:
    """Return one sentence about the first mistake that pydantic found; unknown keys come first."""
    found = error.errors()
    first = next((e for e in found if e["type"] in _UNKNOWN), found[0])
    if first["type"] == SENTENCE:
        return first["msg"]
    # Between the names of keys, pydantic puts the types that it tried, such as "list[int]".
    place = [str(part) for part in first["loc"] if "[" not in str(part)]
    key = ".".join([where, *place] if where else place)
    if first["type"] in _UNKNOWN:
        return f"the key {key!r} is unknown{nearest(str(first['loc'][-1]), known)}"
    if first["type"] == "missing":
        return f"the key {key!r} is missing; add it"
    message = first["msg"].removeprefix("Value error, ")
    return f"{key}={first['input']!r} is not valid: {message[0].lower()}{message[1:]}"
