"""The HTTP routes of viewers: the page, and the status, history, events and metrics of a run."""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated, Any, get_args

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, StreamingResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from fedilc import __version__
from fedilc.federation import Record
from fedilc.runtimes.rest.auth import Auth, connection_of
from fedilc.runtimes.rest.membership import State
from fedilc.runtimes.rest.request_limits import refusals
from fedilc.runtimes.rest.task_queue import Notifier

if TYPE_CHECKING:
    from fedilc.runtimes.rest.study_queue import StudyQueue
    from fedilc.runtimes.rest.task_queue import TaskQueue
    from fedilc.runtimes.rest.viewer import FolderView

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SILO = {
    "examples": ("Examples that the silo trains on.", "examples"),
    "last_seen_timestamp_seconds": ("When the silo was last seen.", "last_seen"),
    "loss": ("The silo's last training loss.", "loss"),
    "received_bytes_total": ("Bytes that the silo sent.", "bytes_received"),
    "sent_bytes_total": ("Bytes that the silo was sent.", "bytes_sent"),
    "strikes_total": ("Replies of the silo that were refused.", "strikes"),
}
MAX_VIEWERS = 200
MAX_DOWNLOADS = 2
PAGE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16
DOWNLOAD_SECONDS = 60.0
PAGE = File(__file__).parent / "page"
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_EVENT_SECONDS = 0.25
KEEP_ALIVE_SECONDS = 15.0
After = Annotated[int, Query(ge=0, le=2**31, description="only rounds after this one")]


class Health(BaseModel):
    """The health of the coordinator."""

    status: str = "ok"
    version: str = __version__
    viewer_token: bool = Field(description="whether viewers need a token")


def add_monitoring(app: FastAPI, run: TaskQueue | StudyQueue | FolderView, auth: Auth) -> None:
    """Add every route except those of silos."""
    add_health(app, auth, run.is_over)
    _add_run(app, run, auth)
    _add_page(app)


def add_health(app: FastAPI, auth: Auth, is_over: Callable[[], bool]) -> None:
    """Add the routes for those who watch the service, not the run."""

    @app.get("/v1/health")
    async def health() -> Health:
        """Return whether the coordinator is up; needs no token."""
        return Health(viewer_token=auth.tokens is not None)

    @app.get("/v1/ready", responses={503: {"model": Health}})
    async def ready() -> JSONResponse:
        """Return whether silos can take part now: 503 once the run is over; needs no token."""
        over = is_over()
        health = Health(status="over" if over else "ready", viewer_token=auth.tokens is not None)
        return JSONResponse(health.model_dump(), 503 if over else 200)


def _add_run(app: FastAPI, run: TaskQueue | StudyQueue | FolderView, auth: Auth) -> None:
    viewers_only, refused = [Depends(auth.require_viewer)], refusals(401, 403, 429)
    history_text = HistoryText(run)
    streams, downloads = EventStreams(run, history_text), Downloads()
    app.state.notifiers.append(streams.notifier)

    @app.get("/metrics", dependencies=viewers_only, responses=refused, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return the run's metrics for Prometheus."""
        held = getattr(app.state, "connections", None)
        connections = {"open": len(held.open), "cut": held.cut} if held is not None else {}
        last = {
            key: value for record in run.history[-100:] for key, value in record.items() if value is not None
        }
        text = exposition(run.snapshot(), last, app.state.audit.refusals, connections)
        return Response(text, media_type=MEDIA_TYPE)

    @app.get("/v1/manifest", dependencies=[Depends(auth.require_token)], responses=refused)
    async def manifest() -> dict[str, Any]:
        """Return the run: algorithm, rounds, model, parameters; and its hash."""
        return run.about()

    @app.get("/v1/status", dependencies=viewers_only, responses=refused)
    async def status() -> dict[str, Any]:
        """Return round, phase, time left, and every silo."""
        return run.snapshot()

    @app.get("/v1/history", responses=refused, response_model=list[Record])
    async def history(after: After = 0, viewer: str | None = viewers_only[0]) -> StreamingResponse:
        """Return the records of completed rounds after a round, at most about 1 MB of them.

        If there are more, the header Link has the address of the next ones.
        """
        body, last = history_text.page(after)
        more = {} if last is None else {"Link": f'</v1/history?after={last}>; rel="next"'}
        return Download(downloads, viewer, body, more)

    @app.get(
        "/v1/events",
        dependencies=viewers_only,
        responses=refused | {200: {"content": {"text/event-stream": {}}}},
        response_class=StreamingResponse,
    )
    async def events(request: Request, after: After = 0) -> StreamingResponse:
        """Send events: `status` when anything changes, `record` for each completed round."""
        if streams.viewers >= MAX_VIEWERS:
            raise HTTPException(429, f"{MAX_VIEWERS} viewers are already connected", {"Retry-After": "30"})
        stream = streams.events(after, partial(auth.is_viewer, request))
        return StreamingResponse(stream, media_type="text/event-stream")


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> FileResponse:
        if name not in {path.name for path in PAGE.iterdir()}:
            raise HTTPException(404, "no such file")
        return FileResponse(PAGE / name, headers=PAGE_HEADERS)


class HistoryText:
    """The history of a run as JSON: each record is serialised once, however many viewers ask for it."""

    def __init__(self, run: TaskQueue | StudyQueue | FolderView) -> None:
        self.run = run
        self._texts: dict[int, bytes] = {}

    def place_after(self, round_: int) -> int:
        """Return the place of the first record after a round."""
        return bisect_right(self.run.history, round_, key=lambda record: int(record["round"]))

    def record(self, place: int) -> bytes:
        """Return a record as JSON."""
        if place not in self._texts:
            self._texts[place] = json.dumps(self.run.history[place], separators=(",", ":")).encode()
        return self._texts[place]

    def page(self, after: int) -> tuple[bytes, int | None]:
        """Return the first records after a round as a JSON list, and their last round if there are more."""
        texts, size, end = list[bytes](), 0, len(self.run.history)
        place = self.place_after(after)
        while place < end and size < PAGE_BYTES:
            texts.append(self.record(place))
            size += len(texts[-1])
            place += 1
        return b"[%b]" % b",".join(texts), self.run.history[place - 1]["round"] if place < end else None


class Downloads:
    """How many downloads each viewer has open; what is not read stays in memory."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def begin(self, viewer: str) -> None:
        """Count a download; refuse a viewer who has too many open."""
        if self._open[viewer] >= MAX_DOWNLOADS:
            detail = f"this viewer already has {MAX_DOWNLOADS} downloads of the history open"
            raise HTTPException(429, detail, {"Retry-After": "1"})
        self._open[viewer] += 1

    def end(self, viewer: str) -> None:
        """Count a download no longer."""
        self._open[viewer] -= 1
        if not self._open[viewer]:
            del self._open[viewer]


class Download(StreamingResponse):
    """A JSON body that is sent in parts, as fast as the viewer reads it, and cut off after a minute."""

    def __init__(
        self, downloads: Downloads, viewer: str | None, body: bytes, headers: dict[str, str]
    ) -> None:
        self.downloads, self.viewer = downloads, viewer or ""
        downloads.begin(self.viewer)
        headers = {"Content-Length": str(len(body)), **headers}
        super().__init__(_parts(body), headers=headers, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the body."""
        try:
            async with asyncio.timeout(DOWNLOAD_SECONDS):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            connection = connection_of(scope)
            if connection is not None:
                connection.abort()
        finally:
            self.downloads.end(self.viewer)


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), CHUNK_BYTES):
        yield body[start : start + CHUNK_BYTES]


class EventStreams:
    """The viewers that receive events."""

    def __init__(self, run: TaskQueue | StudyQueue | FolderView, history: HistoryText | None = None) -> None:
        self.run, self.history = run, history or HistoryText(run)
        self.viewers = 0
        self.notifier = Notifier(run.listen)

    async def events(self, after: int, allowed: Callable[[], bool] = lambda: True) -> AsyncIterator[str]:
        """Yield records after a round, and each new status, while the run lasts and the viewer is allowed."""
        run, seen, sent_at = self.run, -1, time.monotonic()
        self.viewers += 1
        self.notifier.attach()
        try:
            while allowed() and not self.notifier.closed:
                if run.revision != seen:
                    seen = run.revision
                    for place in range(self.history.place_after(after), len(run.history)):
                        after = run.history[place]["round"]
                        yield _event("record", self.history.record(place).decode())
                        await asyncio.sleep(0)  # a long history is sent in turns with other requests
                    yield _event("status", json.dumps(run.snapshot()))
                    sent_at = time.monotonic()
                    if run.is_over():
                        return
                    await asyncio.sleep(_EVENT_SECONDS)
                elif time.monotonic() - sent_at > KEEP_ALIVE_SECONDS:
                    yield ": still here\n\n"
                    sent_at = time.monotonic()
                if run.revision == seen:
                    await self.notifier.wait(KEEP_ALIVE_SECONDS)
        finally:
            self.viewers -= 1


def _event(kind: str, text: str) -> str:
    return f"event: {kind}\ndata: {text}\n\n"


def exposition(
    status: Mapping[str, Any],
    last: Mapping[str, Any],
    refusals: Mapping[int, int],
    connections: Mapping[str, int],
) -> bytes:
    """Return all metrics as text, from a run's status, its last record, and what was counted."""
    registry = CollectorRegistry()
    registry.register(_Run(status, last, refusals, connections))
    return generate_latest(registry)


@dataclass(frozen=True, eq=False)  # a registry hashes its collectors
class _Run(Collector):
    """What is known now; Prometheus's own counters would keep a second copy of it."""

    status: Mapping[str, Any]
    last: Mapping[str, Any]
    refusals: Mapping[int, int]
    connections: Mapping[str, int]

    def collect(self) -> list[Metric]:
        """Return each metric that has a value."""
        return [metric for metric in self._metrics() if metric.samples]

    def _metrics(self) -> Iterator[Metric]:
        status, silos = self.status, self.status["silos"]
        yield _metric("rounds_completed", "Completed rounds.", status["completed"])
        yield _metric("rounds_planned", "Rounds of the run.", status["rounds"])
        yield _metric("round_seconds", "Seconds per round.", status["seconds_a_round"])
        yield _metric("ended", "Whether the run is over.", status["outcome"] is not None)
        for key in ("train_loss", "validation_loss", "test_loss"):
            yield _metric(key, "Of the last round that has it.", self.last.get(key))
        states = Counter(silo["state"] for silo in silos)
        yield _metric("silos", "Silos by state.", {name: states[name] for name in get_args(State)}, "state")
        for name, (about, key) in _SILO.items():
            values = {silo["name"]: silo[key] for silo in [*silos, *status.get("carriers", [])]}
            yield _metric(f"silo_{name}", about, values, "silo")
        refused = {str(code): times for code, times in sorted(self.refusals.items())}
        yield _metric("http_refused_total", "Refused requests by status.", refused, "status")
        yield _metric("connections", "Open connections.", self.connections.get("open", 0))
        yield _metric(
            "connections_cut_total", "Connections closed to make room.", self.connections.get("cut", 0)
        )


def _metric(name: str, about: str, values: Any, label: str | None = None) -> Metric:
    """Return a counter if the name ends with _total, or a gauge; with a label, there is a value for each."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    metric = kind(f"fedilc_{name}", about, labels=[] if label is None else [label])
    for key, value in (values if label is not None else {None: values}).items():
        if value is not None:
            metric.add_metric([] if key is None else [key], float(value))
    return metric
