"""The runtime that puts requests on the board and yields what silos bring, wherever they are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedilc.federation import Reply, Request
from fedilc.runtimes.rest.board import Board, Posted

_TICK_SECONDS = 0.5


class RestRuntime:
    """Asks silos over HTTP, and waits for them.

    A silo that has not answered after `round_timeout` seconds is lost to the round, if `min_silos`
    have answered; if not, the round waits until they have. It may come back in the next round.
    """

    def __init__(self, board: Board, min_silos: int, round_timeout: float) -> None:
        self.board = board
        self.min_silos = min_silos
        self.round_timeout = round_timeout
        self._like: Mapping[str, Tensor] = board.manifest.like()

    @property
    def silos(self) -> tuple[str, ...]:
        """The names of all silos, in order."""
        return tuple(self.board.silos)

    def present(self) -> tuple[str, ...]:
        """The silos to ask in the next round; waits for those that are needed."""
        return self.board.wait_for_silos(self.min_silos, self.round_timeout)

    def ask(self, request: Request) -> Iterator[Reply]:
        """Put the request up; yield answers as they come."""
        self.board.post(Posted(request, self.board.manifest, self._expected(request)))
        waiting = set(request.silos)
        deadline = time.monotonic() + self.round_timeout
        try:
            while waiting:
                reply = self.board.take(_TICK_SECONDS)
                if reply is not None:
                    waiting.discard(reply.silo)
                    yield reply
                    continue
                answered = len(request.silos) - len(waiting)
                if self.board.hopeless() or (time.monotonic() >= deadline and answered >= self.min_silos):
                    break
        finally:
            self.board.close(tuple(sorted(waiting)))

    def _expected(self, request: Request) -> dict[str, dict[str, Tensor]]:
        if request.phase == "evaluate":
            return {}
        if request.phase == "statistics":
            return {"variance": {"C": self._variance_like()}}
        expected = {"gradient": dict(self._like)}
        apart = request.variance is not None and self.board.manifest.choices.inter != "mean"
        return expected | {"penalty": dict(self._like)} if apart else expected

    def _variance_like(self) -> Tensor:
        """C_e has one number for each parameter of the classifier, or for each pair of them."""
        manifest = self.board.manifest
        name = f"{manifest.classifier}." if manifest.classifier else ""
        own = [self._like[key] for key in (f"{name}weight", f"{name}bias") if key in self._like]
        size = sum(like.numel() for like in own)
        shape = (size, size) if manifest.covariance == "full" else (size,)
        return torch.empty(shape, dtype=own[0].dtype, device="meta")
