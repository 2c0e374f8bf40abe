"""The coordinator's HTTP interface, versioned under /v1, described at /docs: what silos use."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from fedilc import __version__
from fedilc.federation.program import MOST_EXAMPLES
from fedilc.runtimes.remote.wire import MEDIA_TYPE
from fedilc.runtimes.rest.api_page import add_guide
from fedilc.runtimes.rest.audit import Audit, AuditedRefusals
from fedilc.runtimes.rest.auth import Doors, OnlyLoopbackNames, SiloName
from fedilc.runtimes.rest.monitoring import Watchable, add_watching, refusals
from fedilc.runtimes.rest.notifier import Wakeup
from fedilc.runtimes.rest.reply_spool import Body, Spool, Turns
from fedilc.runtimes.rest.status import Refusal
from fedilc.runtimes.rest.task_queue import Board
from fedilc.runtimes.rest.tokens import TokenFile, Tokens

LONGEST_POLL = 60.0
AT_ONCE = 8
DECODED_BYTES = 4 << 20
_THREADS = 40
_WAKE_SECONDS = 5.0
_SILENCE_SECONDS = 60.0
_JOINING_BYTES = 4096
_LEAF_BYTES = 2048
_SMALL_BYTES = 1 << 16
_REFUSALS = refusals(401, 403, 404, 408, 409, 410, 413, 415, 429)

_BYTES = {"schema": {"type": "string", "format": "binary"}}
_TENSORS = {MEDIA_TYPE: _BYTES, "application/octet-stream": _BYTES}

StepName = Annotated[str, Path(max_length=64, description="the step of the round")]
Have = Annotated[str, Query(max_length=64, description="the name of the weights it has")]
Wait = Annotated[float, Query(ge=0, le=LONGEST_POLL, description="seconds to wait for the next task")]


class Joining(BaseModel):
    """What a silo says of itself when it joins: how much it has, nothing of what it has."""

    model_config = ConfigDict(extra="forbid")

    manifest: Annotated[str, Field(min_length=64, max_length=64, description="the manifest's hash")]
    examples: Annotated[int, Field(ge=1, le=MOST_EXAMPLES)]


class Carrying(BaseModel):
    """What a sub-coordinator says of itself when it joins, and again when it has other silos than before."""

    model_config = ConfigDict(extra="forbid")

    manifest: Annotated[str, Field(min_length=64, max_length=64, description="the manifest's hash")]
    leaves: Annotated[
        dict[str, Annotated[int, Field(ge=1, le=MOST_EXAMPLES)]], Field(description="examples of each silo")
    ]
    lost: Annotated[
        dict[str, Annotated[str, Field(max_length=500)]],
        Field(default_factory=dict, description="why it has others no longer"),
    ]


class Taken(BaseModel):
    """An answer was taken, now or before."""

    taken: bool = True


class Joined(BaseModel):
    """A silo is part of the run; a sub-coordinator learns which of its silos have answered what is up."""

    silo: str
    round: int
    round_timeout: float | None = None
    task: str = ""
    answered: list[str] = []


def make_app(watched: Board | Watchable, tokens: Tokens | TokenFile | None) -> FastAPI:
    """The interface to a board, or the page alone of anything else that can be watched."""
    app = FastAPI(
        title="FedILC coordinator",
        version=__version__,
        description="Silos ask for their next task and bring answers; tensors travel as safetensors.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.wakeups = []
    app.state.silos = len(watched.silos) if isinstance(watched, Board) else 0
    app.exception_handler(RequestValidationError)(_say_what_is_wrong)
    doors = Doors(tokens)
    if tokens is None:
        app.add_middleware(OnlyLoopbackNames)
    audit = watched.audit if isinstance(watched, Board) else Audit()
    app.state.audit = audit
    app.add_middleware(AuditedRefusals, audit=audit)
    if isinstance(watched, Board):
        _add_silos(app, watched, doors)
    add_watching(app, watched, doors)
    add_guide(app)
    return app


async def _say_what_is_wrong(_request: Request, error: Exception) -> JSONResponse:
    """One sentence, which repeats nothing of what was sent."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:2])
    return JSONResponse({"detail": f"{where}: {first['msg']}"[:300]}, 422)


class Desk:
    """The silos at the board: each is known, and comes with only so many requests at a time."""

    def __init__(self, board: Board) -> None:
        self.board = board
        at_once = DECODED_BYTES // max(1, board.manifest.program.answer_bytes)
        self.decoding = asyncio.Semaphore(min(_THREADS, max(2, at_once)))
        self.turns = Turns()
        self._busy: Counter[str] = Counter()

    @contextmanager
    def serving(self, silo: str, joining: bool = False) -> Iterator[None]:
        """While a request of a silo is answered, or of a sub-coordinator that has joined or is about to."""
        known = self.board.knows(silo)
        if not known and not joining:
            raise HTTPException(404, f"no silo of this run is called {silo!r}")
        if self._busy[silo] >= AT_ONCE:
            detail = f"silo {silo!r} has {AT_ONCE} requests open already"
            raise HTTPException(429, detail, {"Retry-After": "1"})
        self._busy[silo] += 1
        if known:
            self.board.arrived(silo)
        try:
            yield
        finally:
            self._busy[silo] -= 1
            if not self._busy[silo]:
                del self._busy[silo]


def _add_silos(app: FastAPI, board: Board, doors: Doors) -> None:
    """What silos use."""
    desk, wakeup = Desk(board), Wakeup(board.listen_for_tasks)
    app.state.wakeups.append(wakeup)
    speaks = [Depends(doors.speak)]
    schemas = [Joining.model_json_schema(), Carrying.model_json_schema()]
    joining = {"required": True, "content": {"application/json": {"schema": {"anyOf": schemas}}}}
    most_joining = _JOINING_BYTES + _LEAF_BYTES * len(board.silos)

    @app.post(
        "/v1/silos/{silo}/join",
        dependencies=speaks,
        responses=_REFUSALS,
        openapi_extra={"requestBody": joining},
    )
    async def join(request: Request, silo: SiloName) -> Joined:
        """Take part in the run; a silo that was away joins again."""
        with desk.serving(silo, joining=True):
            said = _joining((await read_body(request, most_joining, Spool())).content())
            if said.manifest != board.manifest.hash:
                raise HTTPException(409, "the silo knows another manifest than this run's")
            if isinstance(said, Carrying):
                doors.require_carries(request, silo, said.leaves)
                _raise(board.join_carrier(silo, said.leaves, said.lost))
                task, answered = board.answered(silo)
                patience, round_ = board.round_timeout, board.progress.round
                return Joined(silo=silo, round=round_, round_timeout=patience, task=task, answered=answered)
            if silo not in board.silos:
                raise HTTPException(404, f"no silo of this run is called {silo!r}")
            _raise(board.join(silo, said.examples))
            return Joined(silo=silo, round=board.progress.round)

    @app.get(
        "/v1/silos/{silo}/task",
        dependencies=speaks,
        responses=_REFUSALS | {200: {"content": {MEDIA_TYPE: _BYTES}}, 204: {"description": "no task yet"}},
        response_class=Response,
    )
    async def task(request: Request, silo: SiloName, have: Have = "", wait: Wait = 0.0) -> Response:
        """The silo's next task, waited for."""
        with desk.serving(silo):
            body = await _next_task(request, board, wakeup, silo, have, wait)
            return Response(status_code=204) if body is None else Response(body, media_type=MEDIA_TYPE)

    @app.put(
        "/v1/silos/{silo}/rounds/{number}/{step}",
        dependencies=speaks,
        responses=_REFUSALS | {200: {"model": Taken, "content": {MEDIA_TYPE: _BYTES}}},
        response_model=None,
        openapi_extra={"requestBody": {"required": True, "content": _TENSORS}},
    )
    async def answer(
        request: Request,
        silo: SiloName,
        number: Annotated[int, Path(ge=1, le=2**31, description="the round")],
        step: StepName,
        task: Annotated[str, Query(max_length=64, description="the task's name")],
        content_digest: Annotated[str | None, Header(description="sha-256, as RFC 9530 has it")] = None,
        have: Have = "",
        wait: Wait = 0.0,
    ) -> Response:
        """Bring an answer, and take the next task along if one comes in time.

        To bring the same twice changes nothing.
        """
        with desk.serving(silo):
            most = board.most_bytes(silo, number, step, task)
            if isinstance(most, Refusal):
                raise HTTPException(most.status, most.reason)
            async with desk.turns.one() if most > _SMALL_BYTES else nullcontext():
                body = await read_body(request, most, board.spool)
            board.seen(silo, received=body.size)
            accept = partial(board.accept, silo, number, step, task, body, content_digest)
            if body.size < _SMALL_BYTES:
                _raise(accept())
            else:
                async with desk.decoding:
                    _raise(await run_in_threadpool(accept))
            del body, accept  # a waiting request must not hold what was added up already
            following = await _next_task(request, board, wakeup, silo, have, wait) if wait else None
            if following is None:
                return JSONResponse(Taken().model_dump())
            return Response(following, media_type=MEDIA_TYPE)


async def _next_task(
    request: Request, board: Board, wakeup: Wakeup, silo: str, have: str, wait: float
) -> bytes | None:
    """The task's bytes, or None when the time is over, the silo has hung up, or the server stops."""
    wakeup.attach()
    until = time.monotonic() + wait
    while True:
        posted = board.task_for(silo)
        if isinstance(posted, Refusal):
            _raise(posted)
        elif posted is not None:
            to_carrier = silo not in board.silos
            body = posted.at_hand(have, to_carrier) or await run_in_threadpool(posted.body, have, to_carrier)
            if body is None:
                continue
            board.seen(silo, sent=len(body))
            return body
        left = until - time.monotonic()
        if left <= 0 or wakeup.closed:
            return None
        await wakeup.wait(min(left, _WAKE_SECONDS))
        if await request.is_disconnected():
            return None


def _raise(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise HTTPException(refusal.status, refusal.reason)


def _joining(body: bytes) -> Joining | Carrying:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    try:
        kind = Carrying if isinstance(found, dict) and "leaves" in found else Joining
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"][:1])
        raise HTTPException(422, f"{where}: {first['msg']}"[:300]) from error


async def read_body(request: Request, most: int, spool: Spool) -> Body:
    """The body, unless it is larger than it can be, stands still, or ends before it is complete."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(415, "bodies are taken as they are, without Content-Encoding")
    too_large = HTTPException(413, f"this takes at most {most} bytes", {"Connection": "close"})
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:20]) > most:
        raise too_large
    body = Body(spool)
    clock = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(_SILENCE_SECONDS) as silence:
            async for part in request.stream():
                silence.reschedule(clock() + _SILENCE_SECONDS)
                if body.size + len(part) > most:
                    raise too_large
                body.write(part)
        return body
    except ClientDisconnect as error:
        raise HTTPException(400, "the body is not complete") from error
    except TimeoutError as error:
        raise HTTPException(408, f"nothing came for {_SILENCE_SECONDS:g} seconds") from error
    except OSError as error:
        raise HTTPException(503, "there is no room for this answer now", {"Retry-After": "5"}) from error
