"""The base of all sources of silos. Needs no torch."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from fedilc.section import Section, validated

if TYPE_CHECKING:
    from fedilc.data import Federation
    from fedilc.data.silo_store import SiloStore


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


__all__ = ["Section", "Source", "validated"]
