"""The base class of runtimes: a runtime sends requests to silos and yields their replies as they arrive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedilc.aggregation import Aggregator, Sums
from fedilc.federation.protocol import AggregatedReply, Reply, Request, SiloNumbers, TotalReply


class Runtime(ABC):
    """How requests reach silos. The defaults are for a single process.

    Attributes:
        silos: the names of all silos, in the order in which records list them.
        leads: whether this process writes files and prints; exactly one of several processes does.
        sums_only: whether replies are hidden in sums, which `total` returns in place of `ask`.
        sets_aside: whether a round is repeated without outliers. If whoever started the run owns all silos,
            outliers are honest, and the run only warns of them.
        state_folder: where silos of this process store their state between rounds; None keeps it in memory.
    """

    silos: tuple[str, ...] = ()
    leads: bool = True
    sums_only: bool = False
    sets_aside: bool = True
    state_folder: Path | None = None

    @abstractmethod
    def ask(self, request: Request) -> Iterator[Reply] | Iterator[Reply | AggregatedReply]:
        """Yield replies as they arrive, each from one silo or several; a lost silo sends none."""

    def total(
        self,
        request: Request,
        like: Mapping[str, Mapping[str, Tensor]],
        exactly: bool,
        check_states: Callable[[Mapping[str, int]], None],
    ) -> TotalReply:
        """Return the sums of the silos' replies.

        `exactly` says whether they must be over all of them. `check_states` is called with the round of each
        silo's state before any sum is known, and raises if one has another state than it should.
        """
        raise NotImplementedError

    def present(self) -> tuple[str, ...]:
        """Return the silos to ask in the next round; wait until there are enough."""
        return self.silos

    def combine(self, _sums: Sequence[tuple[Aggregator, Sums]], replies: SiloNumbers) -> SiloNumbers:
        """Add up the sums of all processes in place; return the replies of all silos, without tensors."""
        return replies

    def set_aside(self, _reasons: Mapping[str, str], _round: int | None = None) -> None:
        """Show that a round continues without the replies of these silos, or the run if `_round` is None."""
        return

    def reasons(self, _silos: Sequence[str]) -> Mapping[str, str]:
        """Return why some of these silos did not reply, if known."""
        return {}

    def broadcast(
        self, tensors: Mapping[str, Tensor], facts: dict[str, Any]
    ) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        """Return the leading process's tensors and facts, in every process."""
        return tensors, facts

    def compute_rows(self, compute: Callable[[slice], Tensor], rows: int) -> Tensor:
        """Return what `compute` finds for rows 0 to `rows`; each of several processes computes a share."""
        return compute(slice(0, rows))
