"""Limit what requests may cost: their number, the size and time of bodies, the memory to read them.

A refusal is an HTTP status and one sentence, which repeats nothing of the request.
`http_server.py` limits connections and headers; `OpenRequest.max_bytes` says how large a reply may be.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from fedilc.runtimes.rest.membership import RefusedError
from fedilc.runtimes.rest.study_queue import StudyQueue
from fedilc.runtimes.rest.task_queue import Body, Spool, TaskQueue

MAX_CONCURRENT = 8
CONCURRENT_UPLOADS = 16  # of large bodies, which hold up to 300 kB in buffers each
SLOT_SECONDS = 0.25
DECODED_BYTES = 4 << 20
READ_TIMEOUT_SECONDS = 60.0
_THREADS = 40  # of starlette's pool
_MAX_REASON_LENGTH = 300
Model = TypeVar("Model", bound=BaseModel)


class RequestLimits:
    """Limits on the concurrent requests per silo, and on the replies received and decoded at a time."""

    def __init__(self, queue: TaskQueue | StudyQueue) -> None:
        self.queue = queue
        at_once = DECODED_BYTES // max(1, queue.answer_bytes)
        self.decoding = asyncio.Semaphore(min(_THREADS, max(2, at_once)))
        self._uploads = asyncio.Semaphore(CONCURRENT_UPLOADS)
        self._open: Counter[str] = Counter()

    @contextmanager
    def admit(self, silo: str, joining: bool = False) -> Iterator[None]:
        """Count a silo's request while it is served; refuse unknown silos and too many requests."""
        known = self.queue.knows(silo)
        if not known and not joining:
            raise HTTPException(404, f"no silo of this run is called {silo!r}")
        if self._open[silo] >= MAX_CONCURRENT:
            detail = f"silo {silo!r} already has {MAX_CONCURRENT} requests open"
            raise HTTPException(429, detail, {"Retry-After": "1"})
        self._open[silo] += 1
        if known:
            self.queue.mark_present(silo)
        try:
            yield
        finally:
            self._open[silo] -= 1
            if not self._open[silo]:
                del self._open[silo]

    @asynccontextmanager
    async def upload_slot(self) -> AsyncIterator[None]:
        """Hold one of a few slots while a large body is received, because each may have 300 kB in buffers.

        After a quarter of a second the body no longer counts, so that neither slow connections nor silos that
        stop sending delay a round.
        """
        await self._uploads.acquire()
        with ExitStack() as held:
            held.callback(self._uploads.release)
            held.callback(asyncio.get_running_loop().call_later(SLOT_SECONDS, held.close).cancel)
            yield


async def read_body(request: Request, max_bytes: int, spool: Spool) -> Body:
    """Receive a body; refuse it if it is encoded, too large, stops for a minute, or is not complete."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(415, "send the body without Content-Encoding")
    too_large = HTTPException(413, f"the body may have at most {max_bytes} bytes", {"Connection": "close"})
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:20]) > max_bytes:
        raise too_large
    body = Body(spool)
    clock = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(READ_TIMEOUT_SECONDS) as silence:
            async for part in request.stream():
                silence.reschedule(clock() + READ_TIMEOUT_SECONDS)
                if body.size + len(part) > max_bytes:
                    raise too_large
                body.write(part)
        return body
    except ClientDisconnect as error:
        raise HTTPException(400, "the body is not complete") from error
    except TimeoutError as error:
        raise HTTPException(408, f"nothing was received for {READ_TIMEOUT_SECONDS:g} seconds") from error
    except OSError as error:
        raise HTTPException(503, "there is no room for this body now", {"Retry-After": "5"}) from error


def read_json(model: type[Model], body: bytes) -> Model:
    """Return a validated body; refuse one that is not valid with 422."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise HTTPException(422, _sentence(first["loc"][:1], first["msg"])) from error


class Reason(BaseModel):
    """Why a request was refused, in one sentence."""

    detail: str


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return a route's refusals as OpenAPI documents them."""
    return {status: {"model": Reason} for status in (400, *statuses, 422)}


def add_refusals(app: FastAPI) -> None:
    """Let an app answer what the task queue refuses, and parameters that are not valid, with one sentence."""

    @app.exception_handler(RefusedError)
    async def refused(_request: Request, error: RefusedError) -> JSONResponse:
        return JSONResponse({"detail": error.reason}, error.status)

    @app.exception_handler(RequestValidationError)
    async def not_valid(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return JSONResponse({"detail": _sentence(first["loc"][1:2], first["msg"])}, 422)


def _sentence(place: tuple[Any, ...], message: str) -> str:
    return f"{'.'.join(str(part) for part in place)}: {message}"[:_MAX_REASON_LENGTH]
