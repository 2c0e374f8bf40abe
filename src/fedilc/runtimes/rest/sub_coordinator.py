"""A coordinator below another: it asks silos of its own, and answers with their sums as if it were one silo.

The manifest is the one of the coordinator above, to the bit, and so are the requests that its silos get: a
silo need not know whether there is a tree. What goes up is sums, and of each silo what the server needs
beside them: its numbers, metrics and norms, or that it is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedilc.aggregation import _kernels
from fedilc.errors import ConfigError
from fedilc.federation.messages import Request, check_reply
from fedilc.federation.silo_weights import SiloWeights, make_weights
from fedilc.federation.step_sums import StepSums
from fedilc.federation.steps import Step
from fedilc.runtimes.remote.carried import pack_carried
from fedilc.runtimes.remote.manifest import MOST_NUMBERS, Manifest
from fedilc.runtimes.remote.wire import Asked
from fedilc.runtimes.rest.app import make_app
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.coordinator import AUDIT_FILE, FAREWELL_SECONDS, say_goodbye
from fedilc.runtimes.rest.http_client import Answer, Line
from fedilc.runtimes.rest.limits import Limits
from fedilc.runtimes.rest.listener import Address, listening
from fedilc.runtimes.rest.participant import Member
from fedilc.runtimes.rest.reply_spool import Spool
from fedilc.runtimes.rest.runtime import RestRuntime
from fedilc.runtimes.rest.systemd import notify
from fedilc.runtimes.rest.task_queue import Board
from fedilc.runtimes.rest.tokens import TokenFile, Tokens

SHARE_OF_TIMEOUT = 0.9
_OVER = "the run is over: "
_LOOK_SECONDS = 1.0


class _Below(RestRuntime):
    """Asks those silos of a request that are here and that the coordinator above still waits for."""

    def __init__(self, board: Board, round_timeout: float) -> None:
        super().__init__(board, 0, round_timeout)
        self.answered: frozenset[str] = frozenset()
        self.told: frozenset[str] = frozenset()

    def mine(self, silos: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the silos that are asked here."""
        here = self.board.here()
        return tuple(silo for silo in silos if silo in here and silo in self.told - self.answered)


class SubCoordinator(Member):
    """Answers a coordinator above for the silos at a board here, from joining to the end of the run.

    It joins once a silo is here, and again whenever it has other silos than it has told of. A thread asks
    for tasks and answers them; the caller's thread watches who is here.
    """

    unknown = (404, 409)

    def __init__(
        self,
        line: Line,
        name: str,
        round_timeout: float = 600.0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.line, self.name, self.tell = line, name, tell
        self.limits = Limits(max_parameters=MOST_NUMBERS)
        self.round_timeout = round_timeout
        self._sent: Mapping[str, Tensor] = {}
        self._task, self._answered = "", ("", frozenset[str]())
        self._joining_now = threading.Lock()
        self._changed = threading.Event()
        self._outcome: str | Exception | None = None

    def find_run(self) -> Manifest:
        """Return the manifest of the coordinator above; raise if this installation cannot add up for it."""
        manifest = self.read_manifest()
        manifest.require_same_steps()
        if self.name in manifest.silos:
            raise ConfigError(f"{self.name!r} is a silo of the run; give the sub-coordinator another --silo")
        return manifest

    def take_part(self, board: Board) -> str:
        """Answer for the silos at a board until the run is over; returns how it ended."""
        manifest = board.manifest
        self.runtime = _Below(board, self.round_timeout)
        board.listen(self._changed.set)
        thread = threading.Thread(target=self._answer_tasks, args=(manifest,), name="fedilc-up", daemon=True)
        while self._outcome is None:
            self._changed.clear()
            if frozenset(board.here()) != self.runtime.told:
                self._join(manifest)
                if thread.ident is None:
                    thread.start()
            self._changed.wait(_LOOK_SECONDS)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome.removeprefix(_OVER)

    def _answer_tasks(self, manifest: Manifest) -> None:
        try:
            self._outcome = self._work(manifest)
        except Exception as error:
            self._outcome = error
        self._changed.set()

    def _join(self, manifest: Manifest) -> None:
        """Tell of all silos that are here; one thread at a time, so that the last word is the newest."""
        with self._joining_now:
            super()._join(manifest)

    def _joining(self) -> dict[str, Any]:
        leaves = self.runtime.board.here()
        lost = self.runtime.reasons([silo for silo in self.runtime.told if silo not in leaves])
        self.runtime.told = frozenset(leaves)
        return {"leaves": leaves, "lost": {silo: reason[:500] for silo, reason in lost.items()}}

    def _joined(self, manifest: Manifest, answer: Answer) -> None:
        super()._joined(manifest, answer)
        found = answer.json()
        if isinstance(found, dict):
            above = found.get("round_timeout")
            if isinstance(above, float | int):
                self.runtime.round_timeout = min(self.round_timeout, SHARE_OF_TIMEOUT * above)
            answered = found.get("answered")
            if isinstance(answered, list):
                self._answered = str(found.get("task")), frozenset(map(str, answered))

    def _weights(self) -> Mapping[str, Tensor]:
        return self._sent

    def _reply(self, manifest: Manifest, asked: Asked) -> bytes | None:
        """Ask the silos here and add up; None if none of them answers, which is told by joining again."""
        request, step = asked.request, manifest.program.steps[asked.request.step]
        self._sent = request.weights
        if asked.task == self._task:
            self._join(manifest)
        self._task = asked.task
        task, answered = self._answered
        self.runtime.answered = answered if task == asked.task else frozenset()
        wanted = self.runtime.mine(request.silos)
        total = StepSums(step, _blank(step), _weights_of(manifest, request))
        for reply in self.runtime.ask(request):
            check_reply(reply, request, step)
            total.add(reply)
        if not total.replies:
            return None
        carried = total.carried(self.name, request.step, request.round)
        lost = self.runtime.reasons([silo for silo in wanted if silo not in total.replies])
        carried.lost = {silo: reason[:500] for silo, reason in lost.items()}
        return pack_carried(carried)


def serve_below(
    sub: SubCoordinator,
    out: Path,
    address: Address,
    tokens: Tokens | TokenFile | None,
    ready: Callable[[str, Manifest], None] | None = None,
) -> str:
    """Serve silos of one's own for the coordinator above until its run is over; returns how it ended."""
    address.require_safe(tokens)
    _kernels.load()
    manifest = sub.find_run()
    known = tokens.current() if tokens is not None and address.client_authority is None else None
    silos = [silo for silo in manifest.silos if known is None or known.admits(silo)]
    if not silos:
        raise ConfigError(
            f"no silo of the run {manifest.run!r} has a token here; make one with `fedilc token NAME`"
        )
    if not out.exists():
        out.mkdir(mode=0o700, parents=True)
    board = Board(manifest, audit=Audit(out / AUDIT_FILE), spool=Spool(out), silos=silos)
    try:
        with listening(make_app(board, tokens), address) as port:
            board.audit.event("started", url=address.url(port), manifest=manifest.hash, upstream=sub.line.url)
            notify("READY=1")
            if ready is not None:
                ready(address.url(port), manifest)
            outcome = sub.take_part(board)
            here = board.here()
            board.finish(outcome)
            say_goodbye(board, here, FAREWELL_SECONDS)
        return outcome
    finally:
        board.audit.flush(now=True)


def _weights_of(manifest: Manifest, request: Request) -> SiloWeights:
    """Return how much silos count, as the server above has learnt it."""
    steps = manifest.weights_step, manifest.weights_power
    weights = make_weights(manifest.choices.weights, manifest.silos, *steps)
    weights.restore(request.silo_weights)
    return weights


def _blank(step: Step) -> dict[str, dict[str, Tensor]]:
    return {
        group: {name: torch.empty(like.shape, dtype=like.dtype) for name, like in answer.like.items()}
        for group, answer in step.answers.items()
    }
