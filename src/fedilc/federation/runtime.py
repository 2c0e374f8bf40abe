"""What a runtime is: anything that can put a request to silos and yield their replies as they come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedilc.aggregation import Aggregator, Sums
from fedilc.federation.messages import Carried, Reply, Request

Facts = dict[str, dict[str, Any]]


class Runtime(ABC):
    """How requests reach silos. The defaults suit one process that has all silos.

    Attributes:
        silos: the names of all silos, in the order that records have them in.
        leads: whether this process writes and reports; of several, one does.
    """

    silos: tuple[str, ...] = ()
    leads: bool = True

    @abstractmethod
    def ask(self, request: Request) -> Iterator[Reply] | Iterator[Reply | Carried]:
        """Yield replies as they come, of single silos or of many; a silo that is lost yields nothing."""

    def present(self) -> tuple[str, ...]:
        """Return the silos to ask in the next round; wait until there are enough."""
        return self.silos

    def mine(self, silos: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the silos whose replies come to this process."""
        return silos

    def combine(self, _sums: Sequence[tuple[Aggregator, Sums]], answers: Facts) -> Facts:
        """Add up the sums of all processes in place; return the facts of all their silos."""
        return answers

    def set_aside(self, _round: int, _reasons: Mapping[str, str]) -> None:
        """Take note that a round continues without the answers of these silos, for these reasons."""
        return

    def leave_out(self, _reasons: Mapping[str, str]) -> None:
        """Take note that these silos are not asked any more, for these reasons."""
        return

    def reasons(self, _silos: Sequence[str]) -> Mapping[str, str]:
        """Return why some of these silos did not answer, as far as that is known."""
        return {}

    def broadcast(
        self, tensors: Mapping[str, Tensor], facts: dict[str, Any]
    ) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        """Return the leading process's tensors and facts in every process."""
        return tensors, facts

    def keep_states(self, _folder: Path) -> None:
        """Keep what silos of this process remember in a folder."""
        return

    def broadcast_flag(self, flag: bool) -> bool:
        """Return the leading process's flag in every process."""
        return flag

    def own_rows(self, rows: int) -> slice:
        """Return which of some rows this process is to compute."""
        return slice(0, rows)

    def share_rows(self, _values: Tensor) -> None:
        """Fill in, in place, the rows that other processes have computed; this one's others are 0."""
        return
