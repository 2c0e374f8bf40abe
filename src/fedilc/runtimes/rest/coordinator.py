"""A coordinator: the training loop in this thread, HTTP in another, both at one board."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fedilc.aggregation import _kernels
from fedilc.errors import ConfigError
from fedilc.federation import Record
from fedilc.gradients.memory import return_freed_memory
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.run import RemoteRun
from fedilc.runtimes.rest.app import make_app
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.listener import Address, listening
from fedilc.runtimes.rest.reply_spool import MEMORY_BYTES, Spool
from fedilc.runtimes.rest.runtime import RestRuntime
from fedilc.runtimes.rest.systemd import notify
from fedilc.runtimes.rest.task_queue import Board
from fedilc.runtimes.rest.tokens import TokenFile, Tokens, require_name
from fedilc.training.callbacks import Callback, Run
from fedilc.training.result import Result

AUDIT_FILE = "audit.jsonl"
LARGE_BLOCK_BYTES = 128 << 10
FAREWELL_SECONDS = 15.0
LATE_FAREWELL_SECONDS = 60.0


class Watch(Callback):
    """Opens the doors once the run folder is ours, and puts every completed round on the board."""

    def __init__(self, board: Board, open_doors: Callable[[], None]) -> None:
        self.board = board
        self.open_doors = open_doors
        self.was_over = False
        self._since = time.perf_counter()

    def on_start(self, run: Run) -> None:
        self.board.history.extend(run.history)
        self.was_over = run.stopped is not None or len(run.history) >= run.rounds
        if self.was_over:
            self.board.finish(run.stopped or "complete")
        self.open_doors()
        self._since = time.perf_counter()

    def on_round(self, _run: Run, record: Record) -> None:
        now = time.perf_counter()
        self.board.record(record, now - self._since)
        self._since = now


def serve(
    run: RemoteRun,
    out: Path,
    address: Address,
    tokens: Tokens | TokenFile | None,
    *,
    round_timeout: float = 600.0,
    callbacks: Sequence[Callback] = (),
    ready: Callable[[str, Manifest], None] | None = None,
    afterwards: Callable[[Result], None] | None = None,
) -> Result:
    """Train over silos that join by HTTP; continues the run that `out` holds, if it is this one.

    `ready` is called with the address and the manifest once silos can join; `afterwards` with the result
    while they, and the page, are still answered.
    """
    address.require_safe(tokens)
    require_tokens(run.outline.silos, tokens, address)
    _kernels.load()
    board = Board(run.manifest, audit=Audit(out / AUDIT_FILE), spool=Spool(out))
    training = run.training(RestRuntime(board, run.needed, round_timeout))
    if len(board.silos) * 4 * board.manifest.numbers > 4 * MEMORY_BYTES:
        return_freed_memory(LARGE_BLOCK_BYTES)  # it costs time, and few small answers need it not
    try:
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(address.bind())

            def open_doors() -> None:
                port = stack.enter_context(listening(make_app(board, tokens), address, sock))
                board.audit.event("started", url=address.url(port), manifest=board.manifest.hash)
                notify("READY=1")
                if ready is not None:
                    ready(address.url(port), board.manifest)

            watch = Watch(board, open_doors)
            if not out.exists():
                out.mkdir(mode=0o700, parents=True)
            result = run.train(training, "rest", out, [watch, *callbacks])
            here = board.here()
            board.finish(result.stopped or "complete")
            if afterwards is not None:
                afterwards(result)
            if watch.was_over:
                say_goodbye(board, board.silos, LATE_FAREWELL_SECONDS)
            else:
                say_goodbye(board, here, FAREWELL_SECONDS)
        return result
    except BaseException as error:
        board.audit.event("ended", outcome=str(error) or "stopped")
        raise
    finally:
        board.audit.flush(now=True)


def require_tokens(silos: Iterable[str], tokens: Tokens | TokenFile | None, address: Address) -> None:
    """Raise if a silo could not show who it is."""
    for silo in silos:
        require_name(silo)
        needed = tokens is not None and address.client_authority is None
        if needed and tokens is not None and not tokens.current().admits(silo):
            raise ConfigError(f"silo {silo!r} has no token; make one with `fedilc token {silo}`")


def say_goodbye(board: Board, silos: Iterable[str], patience: float) -> None:
    """Stay until these silos have been told that the run is over, but not for ever."""
    awaited, deadline = set(silos), time.monotonic() + patience
    while time.monotonic() < deadline and not awaited <= board.told:
        time.sleep(0.05)
    time.sleep(0.2)
