"""What every source of silos has. This file needs no torch."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from fedilc.config.section import Section

if TYPE_CHECKING:
    from fedilc.data import Federation
    from fedilc.data.silo_store import SiloStore


class Source(Section):
    """Where a federation comes from."""

    source: str

    @abstractmethod
    def build(self, seed: int, folder: Path) -> Federation:
        """The federation of a seed; `folder` is the experiment's own."""

    def store(self, seed: int, folder: Path) -> SiloStore:
        """The same with silos that are opened by name; where they are many, one at a time."""
        from fedilc.data.silo_store import SiloStore

        return SiloStore.of(self.build(seed, folder))
