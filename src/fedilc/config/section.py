"""The base of all sources of silos. Needs no torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic.fields import FieldInfo

from fedilc.algorithms.part_registry import Registry
from fedilc.errors import WrongTypeError
from fedilc.section import Section, validated

if TYPE_CHECKING:
    from fedilc.data import Federation
    from fedilc.data.silo_store import SiloStore


class Source(Section):
    """The section [data] of an experiment: a source of silos.

    A source of one's own has its settings as fields, and is registered under the name that TOML files give:

    >>> class Halves(Source):
    ...     '''Two silos of as many examples each.'''
    ...     examples: int = 10
    ...     def build(self, seed, folder):
    ...         from fedilc import Federation, Silo
    ...         x = [[float(number)] for number in range(self.examples)]
    ...         y = [number % 2 for number in range(self.examples)]
    ...         return Federation("halves", [Silo("a", x, y), Silo("b", x, y)])
    >>> from fedilc.config import parse_experiment, register_source
    >>> register_source("halves", Halves)
    >>> run = parse_experiment({"data": {"source": "halves"}, "rounds": 1, "learning_rate": 0.1})
    >>> run.data.build(0, None)
    Federation('halves', silos: a, b)
    """

    source: str

    @abstractmethod
    def build(self, seed: int, folder: Path) -> Federation:
        """Return the federation of a seed; `folder` is the experiment's folder."""

    def store(self, seed: int, folder: Path) -> SiloStore:
        """Return the same federation with silos that are opened by name, one at a time if they are many."""
        from fedilc.data.silo_store import SiloStore

        return SiloStore.of(self.build(seed, folder))


class SourceRegistry(Registry[type[Source]]):
    """Sources of silos by the name that `data.source` gives."""

    def register(self, name: str, entry: type[Source]) -> None:
        """Add a source under a new name; silos that are given the experiment must have it installed too."""
        if not (isinstance(entry, type) and issubclass(entry, Source)):
            raise WrongTypeError(
                f"register_source() was given {entry!r} as {name!r}; give a subclass of "
                "fedilc.config.section.Source"
            )
        super().register(name, entry)

    def fields(self, name: str) -> Mapping[str, FieldInfo]:
        """Return the settings of a source, with their defaults."""
        return {key: field for key, field in self.get(name).model_fields.items() if key != "source"}


__all__ = ["Section", "Source", "SourceRegistry", "validated"]
