"""Run a coordinator: training in this thread, the HTTP server in another, a task queue between them."""

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
from fedilc.runtimes.remote.survey import rows_of_summaries
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.app import make_app
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.listener import listening, notify_systemd
from fedilc.runtimes.rest.reply_spool import MEMORY_BYTES, Spool
from fedilc.runtimes.rest.runtime import RestRuntime
from fedilc.runtimes.rest.task_queue import TaskQueue
from fedilc.runtimes.rest.tokens import TokenFile, Tokens, require_name
from fedilc.training.callbacks import Callback, Run
from fedilc.training.result import Result

AUDIT_FILE = "audit.jsonl"
LARGE_BLOCK_BYTES = 128 << 10
INFORM_SECONDS = 15.0
LATE_INFORM_SECONDS = 60.0


class QueueUpdates(Callback):
    """Starts the server once the run folder is locked, and adds every completed round to the queue."""

    def __init__(self, queue: TaskQueue, start_server: Callable[[], None]) -> None:
        self.queue = queue
        self.start_server = start_server
        self.was_over = False
        self._since = time.perf_counter()

    def on_start(self, run: Run) -> None:
        """Load the history of the run folder, and start the server."""
        self.queue.history.extend(run.history)
        self.was_over = run.stopped is not None or len(run.history) >= run.rounds
        if self.was_over:
            self.queue.finish(run.stopped or "complete")
        self.start_server()
        self._since = time.perf_counter()

    def on_round(self, _run: Run, record: Record) -> None:
        """Add the round to the queue's history."""
        now = time.perf_counter()
        self.queue.record(record, now - self._since)
        self._since = now


def serve(
    run: RemoteRun,
    out: Path,
    address: Address,
    tokens: Tokens | TokenFile | None,
    *,
    round_timeout: float = 600.0,
    callbacks: Sequence[Callback] = (),
    ready: Callable[[str, Manifest], None] = lambda _url, _manifest: None,
    afterwards: Callable[[Result], None] = lambda _: None,
) -> Result:
    """Train over silos that join by HTTP; continue the run in `out`, if it is this one.

    `ready` is called with the address and the manifest once silos can join; `afterwards` is called with the
    result while silos and the page are still served.
    """
    address.require_safe(tokens)
    require_tokens(run.manifest.silos, tokens, address)
    _kernels.load()
    queue = TaskQueue(run.manifest, audit=Audit(out / AUDIT_FILE), spool=Spool(out))
    queue.summary_rows = rows_of_summaries(out)
    training = run.training(RestRuntime(queue, run.needed, round_timeout))
    if len(queue.silos) * 4 * queue.manifest.numbers > 4 * MEMORY_BYTES:
        return_freed_memory(LARGE_BLOCK_BYTES)  # it costs time, and a few small replies do not need it
    try:
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(address.bind())

            def start_server() -> None:
                port = stack.enter_context(listening(make_app(queue, tokens), address, sock))
                queue.audit.event("started", url=address.url(port), manifest=queue.manifest.hash)
                notify_systemd("READY=1")
                ready(address.url(port), queue.manifest)

            updates = QueueUpdates(queue, start_server)
            out.mkdir(mode=0o700, parents=True, exist_ok=True)
            result = run.train(training, "rest", out, [updates, *callbacks])
            present = queue.present()
            queue.finish(result.stopped or "complete")
            afterwards(result)
            if updates.was_over:
                wait_until_informed(queue, queue.silos, LATE_INFORM_SECONDS)
            else:
                wait_until_informed(queue, present, INFORM_SECONDS)
        return result
    except BaseException as error:
        queue.audit.event("ended", outcome=str(error) or "stopped")
        raise
    finally:
        queue.audit.flush(now=True)


def require_tokens(silos: Iterable[str], tokens: Tokens | TokenFile | None, address: Address) -> None:
    """Raise if a silo could not show who it is."""
    known = None if tokens is None or address.client_authority is not None else tokens.current()
    for silo in silos:
        require_name(silo)
        if known is not None and not known.admits(silo):
            raise ConfigError(f"silo {silo!r} has no token; make one with `fedilc token {silo}`")


def wait_until_informed(queue: TaskQueue, silos: Iterable[str], patience: float) -> None:
    """Wait until these silos have been told that the run is over, at most `patience` seconds."""
    awaited, deadline = set(silos), time.monotonic() + patience
    while time.monotonic() < deadline and not awaited <= queue.informed:
        time.sleep(0.05)
    time.sleep(0.2)
