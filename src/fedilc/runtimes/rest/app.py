"""The coordinator's HTTP interface, versioned under /v1, with OpenAPI documents at /docs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path as File
from typing import Annotated, Any, Literal, Protocol

from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from fedilc import __version__
from fedilc.federation import Record
from fedilc.runtimes.rest.board import Board, Refusal
from fedilc.runtimes.rest.tokens import FailureLimit, Tokens
from fedilc.runtimes.rest.wire import MEDIA_TYPE

LONGEST_POLL = 60.0
_PAGE = File(__file__).parent / "page"
_EVENT_SECONDS = 0.25
_ALIVE_SECONDS = 15.0


class Joining(BaseModel):
    """What a silo says of itself when it joins: how much it has, nothing of what it has."""

    model_config = ConfigDict(extra="forbid")

    manifest: Annotated[str, Field(min_length=64, max_length=64, description="the manifest's hash")]
    examples: Annotated[int, Field(ge=1, le=2**53)]


class Taken(BaseModel):
    """An answer was taken, now or before."""

    taken: bool = True


class Joined(BaseModel):
    """A silo is part of the run."""

    silo: str
    round: int


class Health(BaseModel):
    """The coordinator is up."""

    status: str = "ok"
    version: str = __version__


class Reason(BaseModel):
    """Why a request was refused, in one sentence."""

    detail: str


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Reason} for status in (400, *statuses)}


SiloName = Annotated[str, Path(description="the silo's name in the manifest", max_length=100)]
PhaseName = Annotated[Literal["statistics", "gradients", "evaluate"], Path()]


class Doors:
    """Who may come in: checks bearer tokens, and slows down those who guess."""

    def __init__(self, tokens: Tokens | None) -> None:
        self.tokens = tokens
        self.limit = FailureLimit()

    def watch(self, request: Request) -> None:
        """Let in viewers and silos."""
        self._check(request, lambda token, tokens: tokens.may_watch(token))

    def speak(self, request: Request, silo: SiloName) -> None:
        """Let in the silo itself."""
        self._check(request, lambda token, tokens: tokens.is_silo(silo, token))

    def _check(self, request: Request, good: Callable[[str, Tokens], bool]) -> None:
        if self.tokens is None:
            return
        address = request.client.host if request.client else "?"
        wait = self.limit.blocked(address)
        if wait > 0:
            detail = f"too many wrong tokens from here; wait {wait:.0f} seconds"
            raise HTTPException(429, detail, {"Retry-After": str(int(wait) + 1)})
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not good(token.strip(), self.tokens):
            self.limit.failed(address)
            detail = "this needs its bearer token; the coordinator's operator makes one with `fedilc token`"
            raise HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})


class Wakeup:
    """Lets the event loop wait for the board, which other threads change."""

    def __init__(self, board: Watchable) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()
        board.listen(self._wake)

    def _wake(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Until something changes, or the time is over."""
        self._loop = asyncio.get_running_loop()
        event = self._event
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return


class Watchable(Protocol):
    """What the page shows: a board, or a run folder."""

    history: list[Record]
    revision: int

    def about(self) -> dict[str, Any]:
        """The run's manifest and its hash."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Round, phase, time left, and every silo."""
        ...

    def over(self) -> bool:
        """Whether nothing will change any more."""
        ...

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever something changes."""
        ...


def make_app(watched: Board | Watchable, tokens: Tokens | None) -> FastAPI:
    """The interface to a board, or the page alone of anything else that can be watched."""
    app = FastAPI(
        title="FedILC coordinator",
        version=__version__,
        description="Silos ask for their next task and bring answers; tensors travel as safetensors.",
        docs_url="/docs",
        redoc_url=None,
    )
    doors = Doors(tokens)
    _add_watching(app, watched, doors)
    if isinstance(watched, Board):
        _add_silos(app, watched, doors)
    return app


def _known(board: Board, silo: str) -> None:
    if silo not in board.silos:
        raise HTTPException(404, f"no silo of this run is called {silo!r}")


def _add_silos(app: FastAPI, board: Board, doors: Doors) -> None:
    """What silos use."""
    wakeup = Wakeup(board)
    speaks = [Depends(doors.speak)]
    refusals = _refusals(401, 403, 404, 409, 410, 422, 429)

    @app.post("/v1/silos/{silo}/join", dependencies=speaks, responses=refusals)
    async def join(silo: SiloName, joining: Joining) -> Joined:
        """Take part in the run; a silo that was away joins again."""
        _known(board, silo)
        if joining.manifest != board.manifest.hash:
            raise HTTPException(409, "the silo knows another manifest than this run's")
        board.seen(silo)
        _raise(board.join(silo, joining.examples))
        return Joined(silo=silo, round=board.progress.round)

    @app.get(
        "/v1/silos/{silo}/task",
        dependencies=speaks,
        responses=refusals | {200: {"content": {MEDIA_TYPE: {}}}, 204: {"description": "no task yet"}},
        response_class=Response,
    )
    async def task(
        silo: SiloName,
        have: Annotated[int, Query(ge=-1, description="the version of the weights the silo has")] = -1,
        wait: Annotated[float, Query(ge=0, le=LONGEST_POLL, description="seconds to wait")] = 0.0,
    ) -> Response:
        """The silo's next task, waited for."""
        _known(board, silo)
        board.seen(silo)
        until = time.monotonic() + wait
        while True:
            posted = board.task_for(silo)
            if isinstance(posted, Refusal):
                _raise(posted)
            elif posted is not None:
                body = await run_in_threadpool(posted.body, have)
                board.seen(silo, sent=len(body))
                return Response(body, media_type=MEDIA_TYPE)
            left = until - time.monotonic()
            if left <= 0:
                return Response(status_code=204)
            await wakeup.wait(min(left, 5.0))
            board.seen(silo)

    @app.put(
        "/v1/silos/{silo}/rounds/{number}/{phase}",
        dependencies=speaks,
        responses=refusals | {413: {"model": Reason}},
        openapi_extra={"requestBody": {"required": True, "content": {MEDIA_TYPE: {}}}},
    )
    async def answer(
        request: Request,
        silo: SiloName,
        number: Annotated[int, Path(ge=1, le=2**31, description="the round")],
        phase: PhaseName,
        task: Annotated[str, Query(max_length=64, description="the task's name")],
    ) -> Taken:
        """Bring an answer; to bring the same twice changes nothing."""
        _known(board, silo)
        body = await _read(request, board.most_bytes)
        board.seen(silo, received=len(body))
        _raise(await run_in_threadpool(board.accept, silo, number, phase, task, body))
        return Taken()


def _raise(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise HTTPException(refusal.status, refusal.reason)


async def _read(request: Request, most: int) -> bytes:
    """The body, unless it is larger than any answer can be or ends before it is complete."""
    too_large = HTTPException(413, f"an answer of this run has at most {most} bytes")
    try:
        if int(request.headers.get("content-length", 0)) > most:
            raise too_large
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise too_large
            parts.append(part)
        return b"".join(parts)
    except (ClientDisconnect, ValueError) as error:
        raise HTTPException(400, "the body is not complete") from error


def _add_watching(app: FastAPI, board: Watchable, doors: Doors) -> None:
    """What viewers use."""
    watches = [Depends(doors.watch)]
    refusals = _refusals(401, 429)
    wakeup = Wakeup(board)

    @app.get("/v1/health")
    async def health() -> Health:
        """Whether the coordinator is up; needs no token."""
        return Health()

    @app.get("/v1/manifest", dependencies=watches, responses=refusals)
    async def manifest() -> dict[str, Any]:
        """The run: algorithm, rounds, model, parameters; and its hash."""
        return board.about()

    @app.get("/v1/status", dependencies=watches, responses=refusals)
    async def status() -> dict[str, Any]:
        """Round, phase, time left, and every silo."""
        return board.snapshot()

    @app.get("/v1/history", dependencies=watches, responses=refusals)
    async def history(after: Annotated[int, Query(ge=0, le=2**31)] = 0) -> list[Record]:
        """The records of completed rounds after a number."""
        return [record for record in board.history if record["round"] > after]

    @app.get(
        "/v1/events",
        dependencies=watches,
        responses=refusals | {200: {"content": {"text/event-stream": {}}}},
        response_class=StreamingResponse,
    )
    async def events(after: Annotated[int, Query(ge=0, le=2**31)] = 0) -> StreamingResponse:
        """Server-sent events: `status` when anything changes, `record` for each completed round."""
        return StreamingResponse(_events(board, wakeup, after), media_type="text/event-stream")

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_PAGE / "index.html", headers=_PAGE_HEADERS)

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> FileResponse:
        if name not in {path.name for path in _PAGE.iterdir()}:
            raise HTTPException(404, "no such file")
        return FileResponse(_PAGE / name, headers=_PAGE_HEADERS)


_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def _events(board: Watchable, wakeup: Wakeup, after: int) -> AsyncIterator[str]:
    seen, said = -1, time.monotonic()
    while True:
        if board.revision != seen:
            seen = board.revision
            for record in [record for record in board.history if record["round"] > after]:
                after = record["round"]
                yield _event("record", record)
            yield _event("status", board.snapshot())
            said = time.monotonic()
            if board.over():
                return
            await asyncio.sleep(_EVENT_SECONDS)
        elif time.monotonic() - said > _ALIVE_SECONDS:
            yield ": still here\n\n"
            said = time.monotonic()
        if board.revision == seen:
            await wakeup.wait(_ALIVE_SECONDS)


def _event(kind: str, value: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(value)}\n\n"
