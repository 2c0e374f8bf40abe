"""Sections of an experiment: validated settings, and the base of all sources of silos. Needs no torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fedilc.errors import ConfigError, nearest

if TYPE_CHECKING:
    from fedilc.data import Federation
    from fedilc.data.silo_store import SiloStore


class Section(BaseModel):
    """Settings that refuse unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Source(Section):
    """The section [data] of an experiment: a source of silos."""

    source: str

    @abstractmethod
    def build(self, seed: int, folder: Path) -> Federation:
        """Return the federation of a seed; `folder` is the experiment's folder."""

    def store(self, seed: int, folder: Path) -> SiloStore:
        """Return the same federation with silos that are opened by name, one at a time if they are many."""
        from fedilc.data.silo_store import SiloStore

        return SiloStore.of(self.build(seed, folder))


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
