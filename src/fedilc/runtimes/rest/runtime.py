"""The runtime that puts requests on the board and yields what silos bring, wherever they are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from fedilc.federation import Carried, Reply, Request, Runtime
from fedilc.runtimes.remote.open_request import Posting
from fedilc.runtimes.rest.task_queue import Board

_TICK_SECONDS = 0.5


class RestRuntime(Runtime):
    """Asks silos over HTTP, and waits for them.

    A silo that has not answered after `round_timeout` seconds is lost to the round, if `min_silos`
    have answered; if not, the round waits until they have. It may come back in the next round.
    """

    def __init__(self, board: Board, min_silos: int, round_timeout: float) -> None:
        self.board = board
        self.min_silos = min_silos
        self.round_timeout = round_timeout
        self.silos = tuple(board.silos)
        self._posting = Posting(board.manifest)
        self._left_out: set[str] = set()
        board.round_timeout = round_timeout

    def present(self) -> tuple[str, ...]:
        """The silos to ask in the next round; waits for those that are needed."""
        able = len(self.silos) - len(self._left_out)
        return self.board.wait_for_silos(min(self.min_silos, able), self.round_timeout)

    def set_aside(self, round_: int, reasons: Mapping[str, str]) -> None:
        """Show on the page which answers a round goes on without."""
        self.board.outlying(round_, reasons)

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Tell silos that they are not asked any more, and wait for them no longer."""
        self._left_out.update(reasons)
        self.board.leave_out(reasons)

    def reasons(self, silos: Sequence[str]) -> Mapping[str, str]:
        """Why these silos did not answer, as the page has it."""
        return self.board.reasons(silos)

    def ask(self, request: Request) -> Iterator[Reply | Carried]:
        """Put the request up; yield answers as they come."""
        asked = self.mine(request.silos)
        self.board.post(self._posting.post(request), asked)
        waiting, patient = set(asked), True
        deadline = time.monotonic() + self.round_timeout
        try:
            while waiting:
                held = self.board.take(_TICK_SECONDS)
                if held is not None:
                    waiting.difference_update(held.silos)
                    yield held.reply()
                    continue
                late = time.monotonic() >= deadline or self.board.gone(waiting)
                if self.board.hopeless() or (late and len(asked) - len(waiting) >= self.min_silos):
                    break
                if late and patient:
                    patient = False
                    self.board.overdue(waiting)
        finally:
            self.board.close(tuple(sorted(waiting)))
