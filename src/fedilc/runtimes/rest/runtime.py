"""The runtime that opens requests in the task queue and yields the replies of silos."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from fedilc.federation import AggregatedReply, Reply, Request, Runtime
from fedilc.runtimes.remote.open_request import RequestOpener
from fedilc.runtimes.rest.task_queue import TaskQueue

_POLL_SECONDS = 0.5


class RestRuntime(Runtime):
    """A runtime over silos that join by HTTP.

    A silo that has not replied after `round_timeout` seconds is lost to the round, if `min_silos` have
    replied; if not, the round waits until they have. A lost silo may come back in the next round.
    """

    def __init__(self, queue: TaskQueue, min_silos: int, round_timeout: float) -> None:
        self.queue = queue
        self.min_silos = min_silos
        self.round_timeout = round_timeout
        self.silos = tuple(queue.silos)
        self.opener = RequestOpener(queue.manifest)
        self._left_out: set[str] = set()
        queue.round_timeout = round_timeout

    def present(self) -> tuple[str, ...]:
        """Return the silos to ask in the next round; wait for those that are needed."""
        left = len(self.silos) - len(self._left_out)
        return self.queue.wait_for_silos(min(self.min_silos, left), self.round_timeout)

    def set_aside(self, reasons: Mapping[str, str], round_: int | None = None) -> None:
        """Show on the page whose replies a round continues without; without a round, stop asking them."""
        if round_ is not None:
            self.queue.set_aside_in_round(round_, reasons)
            return
        self._left_out.update(reasons)
        self.queue.leave_out_of_run(reasons)

    def reasons(self, silos: Sequence[str]) -> Mapping[str, str]:
        """Return why these silos did not reply, as the page shows it."""
        return self.queue.reasons(silos)

    def ask(self, request: Request) -> Iterator[Reply | AggregatedReply]:
        """Open the request; yield replies as they come."""
        return self.ask_only(request, request.silos)

    def ask_only(self, request: Request, asked: Sequence[str]) -> Iterator[Reply | AggregatedReply]:
        """Ask some of the silos of a request; yield their replies as they come."""
        self.queue.open(self.opener.open(request, asked))
        waiting, on_time = set(asked), True
        deadline = time.monotonic() + self.round_timeout
        try:
            while waiting:
                spooled = self.queue.take_reply(_POLL_SECONDS)
                if spooled is not None:
                    waiting.difference_update(spooled.silos)
                    yield spooled.reply()
                    continue
                late = time.monotonic() >= deadline or self.queue.all_gone(waiting)
                if self.queue.is_settled() or (late and len(asked) - len(waiting) >= self.min_silos):
                    break
                if late and on_time:
                    on_time = False
                    self.queue.mark_late(waiting)
        finally:
            self.queue.close(tuple(sorted(waiting)))
