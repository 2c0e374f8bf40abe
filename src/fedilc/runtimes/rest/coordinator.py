"""Run a coordinator: train through a task queue, while a thread serves silos and viewers over HTTP."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from fedilc import __version__
from fedilc.aggregation import _kernels
from fedilc.errors import ConfigError
from fedilc.federation import AggregatedReply, Record, Reply, Request
from fedilc.gradients.fast_linear import return_freed_memory
from fedilc.runtimes.base import Runtime
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.open_request import RequestOpener
from fedilc.runtimes.remote.run import RemoteRun
from fedilc.runtimes.remote.survey import rows_of_summaries
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.audit import Audit, AuditedRefusals
from fedilc.runtimes.rest.auth import Auth, OnlyLoopbackNames, TokenFile, Tokens, require_name
from fedilc.runtimes.rest.http_server import Connections, Server, raise_descriptor_limit
from fedilc.runtimes.rest.monitoring import PAGE, PAGE_HEADERS, add_monitoring
from fedilc.runtimes.rest.request_limits import add_refusals
from fedilc.runtimes.rest.silo_routes import add_silo_routes
from fedilc.runtimes.rest.study_queue import StudyQueue
from fedilc.runtimes.rest.task_queue import MEMORY_BYTES, Spool, TaskQueue
from fedilc.training.callbacks import Callback, Run
from fedilc.training.result import Result

if TYPE_CHECKING:
    from fedilc.privacy.identities import Roster
    from fedilc.runtimes.rest.viewer import FolderView

AUDIT_FILE = "audit.jsonl"
LARGE_BLOCK_BYTES = 128 << 10  # freed blocks from this size on are returned to the system
INFORM_SECONDS = 15.0  # for present silos to learn that the run is over
LATE_INFORM_SECONDS = 60.0  # the same if the run was over when it was served again
_POLL_SECONDS = 0.5


def serve(
    run: RemoteRun,
    out: Path,
    address: Address,
    tokens: Tokens | TokenFile | None,
    *,
    round_timeout: float = 600.0,
    roster: Roster | None = None,
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
    if roster is None:
        runtime = RestRuntime(queue, run.needed, round_timeout)
    else:
        from fedilc.runtimes.rest.secure_runtime import SecureRuntime

        if sorted(roster.keys) != sorted(run.manifest.silos):
            raise ConfigError("the roster names other silos than the run; make one of the run's silos")
        has_tokens = tokens is not None and address.client_authority is None

        def admits(silo: str) -> bool:
            return tokens is None or not has_tokens or tokens.current().admits(silo)

        runtime = SecureRuntime(queue, run.needed, round_timeout, roster, admits)
    training = run.training(runtime)
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
    """Raise if a silo has no way to show who it is."""
    known = None if tokens is None or address.client_authority is not None else tokens.current()
    for silo in silos:
        require_name(silo)
        if known is not None and not known.admits(silo):
            raise ConfigError(f"silo {silo!r} has no token; make one with `fedilc token {silo}`")


def wait_until_informed(queue: TaskQueue | StudyQueue, silos: Iterable[str], patience: float) -> None:
    """Wait until these silos have been told that the run is over, at most `patience` seconds."""
    awaited, deadline = set(silos), time.monotonic() + patience
    while time.monotonic() < deadline and not awaited <= queue.informed:
        time.sleep(0.05)
    time.sleep(0.2)  # a silo counts as informed before its response is sent


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


class RestRuntime(Runtime):
    """A runtime over silos that join by HTTP.

    A silo that has not replied after `round_timeout` seconds is lost to the round if `min_silos` others have
    replied; otherwise the round waits for them. A lost silo may come back in the next round.
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


def make_app(run: TaskQueue | StudyQueue | FolderView, tokens: Tokens | TokenFile | None) -> FastAPI:
    """Return the app of a task queue, or of a run folder, which has the page and no routes of silos."""
    auth = Auth(tokens, run.silos)
    if isinstance(run, TaskQueue | StudyQueue):
        app = make_bare_app(auth, run.audit, len(run.silos))
        add_silo_routes(app, run, auth)
    else:
        app = make_bare_app(auth, Audit(), 0)
    add_monitoring(app, run, auth)

    @app.get("/docs", include_in_schema=False)
    async def api_page() -> HTMLResponse:
        return HTMLResponse(api_html(app.openapi()), headers=PAGE_HEADERS)

    return app


def make_bare_app(auth: Auth, audit: Audit, silos: int) -> FastAPI:
    """Return an app without routes; `silos` is how many silos may connect."""
    app = FastAPI(
        title="FedILC coordinator",
        version=__version__,
        description="Silos ask for their next task and send replies; tensors are sent as safetensors.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.notifiers, app.state.silos, app.state.audit = [], silos, audit
    add_refusals(app)
    if auth.tokens is None:
        app.add_middleware(OnlyLoopbackNames)
    app.add_middleware(AuditedRefusals, audit=audit)
    return app


@contextlib.contextmanager
def listening(app: FastAPI, address: Address, sock: socket.socket | None = None) -> Iterator[int]:
    """Serve `app` in a thread while the context lasts; yield the port.

    At the end, viewers that wait for events and silos that wait for a task are woken first.
    """
    with sock or address.bind() as bound:
        connections = Connections(app.state.silos, raise_descriptor_limit())
        app.state.connections = connections
        server = Server(_config(app, address), connections, app.state.audit.refused)
        thread = threading.Thread(target=server.run, args=([bound],), name="fedilc-http", daemon=True)
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise ConfigError(f"{address.host} port {address.port} cannot be served")
                time.sleep(0.01)
            yield bound.getsockname()[1]
        finally:
            for notifier in app.state.notifiers:
                notifier.close()
            server.should_exit = True
            thread.join(10)


def _config(app: FastAPI, address: Address) -> uvicorn.Config:
    try:
        config = uvicorn.Config(
            app,
            ws="none",
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            lifespan="off",
            callback_notify=partial(_alive, app.state.audit),
            timeout_notify=watchdog_seconds(),  # type: ignore[arg-type]  # uvicorn takes fractions too
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
            ssl_ca_certs=str(address.client_authority) if address.client_authority else None,
            ssl_cert_reqs=ssl.CERT_OPTIONAL if address.client_authority else ssl.CERT_NONE,
        )
        config.load()
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"the certificate or key cannot be used: {error}") from error
    return config


def notify_systemd(state: str) -> None:
    """Send a state such as READY=1 to systemd (sd_notify); do nothing outside a service of Type=notify."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect("\0" + path[1:] if path.startswith("@") else path)
        sock.sendall(state.encode())


def watchdog_seconds() -> float:
    """Return how often systemd wants to hear that the service is alive: twice per its WatchdogSec."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2e6 if microseconds.isdecimal() else 30.0


async def _alive(audit: Audit) -> None:
    """Tell systemd from the event loop that requests are served; write the sums of repeated events."""
    notify_systemd("WATCHDOG=1")
    audit.flush()


def api_html(document: dict[str, Any]) -> str:
    """Return an OpenAPI document as HTML: each resource, its parameters, and its responses."""
    info = document["info"]
    parts = [
        _resource(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    fields = {"title": info["title"], "about": info.get("description", ""), "version": info["version"]}
    escaped = {key: escape(text) for key, text in fields.items()}
    return (PAGE / "api.html").read_text().format(resources="\n".join(parts), **escaped)


def _resource(path: str, method: str, operation: dict[str, Any]) -> str:
    about = escape(operation.get("description", operation.get("summary", "")))
    rows = "\n".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
        for name, text in (*_parameters(operation), *_responses(operation))
    )
    heading = f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    return f"<section>\n{heading}\n<p>{about}</p>\n<dl>\n{rows}\n</dl>\n</section>"


def _parameters(operation: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names and descriptions of the parameters and the body."""
    for parameter in operation.get("parameters", []):
        need = "required" if parameter.get("required") else "optional"
        text = parameter.get("description") or parameter.get("schema", {}).get("description", "")
        yield parameter["name"], f"{parameter['in']}, {need}" + (f": {text}" if text else "")
    kinds = operation.get("requestBody", {}).get("content", {})
    if kinds:
        yield "body", " or ".join(kinds)


def _responses(operation: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the statuses and media types of responses; all refusals share one line."""
    refused = []
    for status, response in operation.get("responses", {}).items():
        if status.startswith("2"):
            yield status, " or ".join(response.get("content", {})) or response.get("description", "")
        else:
            refused.append(status)
    if refused:
        yield "refused", f"{', '.join(sorted(refused))}; JSON whose detail is the reason in one sentence"
