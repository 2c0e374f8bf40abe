"""The base class of runtimes: a runtime sends requests to silos and yields their replies as they arrive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedilc.aggregation import Aggregator, Sums
from fedilc.federation.messages import AggregatedReply, Reply, Request

# The replies of silos without their tensors: numbers, norms and metrics, by silo.
SiloNumbers = dict[str, dict[str, Any]]


class Runtime(ABC):
    """How requests reach silos. The defaults are for a single process.

    Attributes:
        silos: the names of all silos, in the order in which records list them.
        leads: whether this process writes files and prints; of several processes, one does.
        sets_aside: whether a round is repeated without outliers. If all silos belong to whoever started the
            run, outliers are honest, and the run warns of them and continues.
    """

    silos: tuple[str, ...] = ()
    leads: bool = True
    sets_aside: bool = True

    @abstractmethod
    def ask(self, request: Request) -> Iterator[Reply] | Iterator[Reply | AggregatedReply]:
        """Yield replies as they arrive, each of one silo or of several; a lost silo yields none."""

    def present(self) -> tuple[str, ...]:
        """Return the silos to ask in the next round; wait until there are enough."""
        return self.silos

    def combine(self, _sums: Sequence[tuple[Aggregator, Sums]], replies: SiloNumbers) -> SiloNumbers:
        """Add up the sums of all processes in place; return the replies of all silos, without tensors."""
        return replies

    def set_aside(self, _round: int, _reasons: Mapping[str, str]) -> None:
        """Show that a round continues without the replies of these silos, and why."""
        return

    def leave_out(self, _reasons: Mapping[str, str]) -> None:
        """Show that these silos are not asked any more, and why."""
        return

    def reasons(self, _silos: Sequence[str]) -> Mapping[str, str]:
        """Return why some of these silos did not reply, if known."""
        return {}

    def broadcast(
        self, tensors: Mapping[str, Tensor], facts: dict[str, Any]
    ) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        """Return the leading process's tensors and facts, in every process."""
        return tensors, facts

    def keep_states(self, _folder: Path) -> None:
        """Store the state of this process's silos in a folder."""
        return

    def broadcast_flag(self, flag: bool) -> bool:
        """Return the leading process's flag, in every process."""
        return flag

    def own_rows(self, rows: int) -> slice:
        """Return which of `rows` rows this process computes."""
        return slice(0, rows)

    def share_rows(self, _values: Tensor) -> None:
        """Add the rows that other processes have computed, in place; here they are 0."""
        return
