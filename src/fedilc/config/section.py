"""A validated section of settings. This file needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fedilc.errors import ConfigError, nearest


class Section(BaseModel):
    """Settings that refuse unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


SectionType = TypeVar("SectionType", bound=Section)


def validated(kind: type[SectionType], values: Mapping[str, Any], where: str = "") -> SectionType:
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
        found = error.errors()
        first = next((e for e in found if e["type"] == "extra_forbidden"), found[0])
        key = ".".join([*([where] if where else []), *(str(part) for part in first["loc"])])
        if first["type"] == "extra_forbidden":
            short = str(first["loc"][-1])
            hint = nearest(short, kind.model_fields)
            raise ConfigError(f"the key {key!r} is unknown{hint}") from error
        if first["type"] == "missing":
            raise ConfigError(f"the key {key!r} is missing; add it") from error
        message = first["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
        raise ConfigError(f"{key}={first['input']!r} is not valid: {message}") from error
