"""The HTTP routes of viewers: the page, and the status, history, events and metrics of a run."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, Field

from fedilc import __version__
from fedilc.federation import Record
from fedilc.runtimes.rest.auth import Auth
from fedilc.runtimes.rest.metrics import MEDIA_TYPE, exposition
from fedilc.runtimes.rest.notifier import Notifier
from fedilc.runtimes.rest.request_limits import refusals

if TYPE_CHECKING:
    from fedilc.runtimes.rest.task_queue import TaskQueue
    from fedilc.runtimes.rest.viewer import FolderView

MAX_VIEWERS = 200
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


def add_monitoring(app: FastAPI, run: TaskQueue | FolderView, auth: Auth) -> None:
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


def _add_run(app: FastAPI, run: TaskQueue | FolderView, auth: Auth) -> None:
    viewers_only, refused, streams = [Depends(auth.require_viewer)], refusals(401, 429), EventStreams(run)
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

    @app.get("/v1/history", dependencies=viewers_only, responses=refused)
    async def history(after: After = 0) -> list[Record]:
        """Return the records of completed rounds after a round."""
        return [record for record in run.history if record["round"] > after]

    @app.get(
        "/v1/events",
        dependencies=viewers_only,
        responses=refused | {200: {"content": {"text/event-stream": {}}}},
        response_class=StreamingResponse,
    )
    async def events(request: Request, after: After = 0) -> StreamingResponse:
        """Send events: `status` when anything changes, `record` for each completed round."""
        if streams.viewers >= MAX_VIEWERS:
            raise HTTPException(429, f"{MAX_VIEWERS} viewers are connected already", {"Retry-After": "30"})
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


class EventStreams:
    """The viewers that receive events."""

    def __init__(self, run: TaskQueue | FolderView) -> None:
        self.run = run
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
                    for record in [record for record in run.history if record["round"] > after]:
                        after = record["round"]
                        yield _event("record", record)
                    yield _event("status", run.snapshot())
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


def _event(kind: str, value: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(value)}\n\n"
