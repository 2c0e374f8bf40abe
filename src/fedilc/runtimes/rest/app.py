"""The coordinator's HTTP interface, versioned under /v1 and described at /docs: the routes of silos."""

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
from fedilc.federation.program import MAX_EXAMPLES
from fedilc.runtimes.remote.wire import MEDIA_TYPE
from fedilc.runtimes.rest.api_page import add_api_page
from fedilc.runtimes.rest.audit import Audit, AuditedRefusals
from fedilc.runtimes.rest.auth import Auth, OnlyLoopbackNames, SiloName
from fedilc.runtimes.rest.monitoring import RunView, add_monitoring, refusals
from fedilc.runtimes.rest.notifier import Notifier
from fedilc.runtimes.rest.reply_spool import Body, Spool, UploadSlots
from fedilc.runtimes.rest.status import Refusal
from fedilc.runtimes.rest.task_queue import TaskQueue
from fedilc.runtimes.rest.tokens import TokenFile, Tokens

MAX_POLL_SECONDS = 60.0
MAX_CONCURRENT = 8
DECODED_BYTES = 4 << 20
_THREADS = 40
_WAKE_SECONDS = 5.0
_READ_TIMEOUT_SECONDS = 60.0
_JOINING_BYTES = 4096
_LEAF_BYTES = 2048
_SMALL_BYTES = 1 << 16
_REFUSALS = refusals(401, 403, 404, 408, 409, 410, 413, 415, 429)

_BYTES = {"schema": {"type": "string", "format": "binary"}}
_TENSORS = {MEDIA_TYPE: _BYTES, "application/octet-stream": _BYTES}

StepName = Annotated[str, Path(max_length=64, description="the step of the round")]
Have = Annotated[str, Query(max_length=64, description="the name of the weights it has")]
Wait = Annotated[float, Query(ge=0, le=MAX_POLL_SECONDS, description="seconds to wait for the next task")]


class JoinRequest(BaseModel):
    """What a silo sends when it joins: how many examples it has, and nothing about them."""

    model_config = ConfigDict(extra="forbid")

    manifest: Annotated[str, Field(min_length=64, max_length=64, description="the manifest's hash")]
    examples: Annotated[int, Field(ge=1, le=MAX_EXAMPLES)]


class SubCoordinatorJoin(BaseModel):
    """What a sub-coordinator sends when it joins, and again whenever its silos change."""

    model_config = ConfigDict(extra="forbid")

    manifest: Annotated[str, Field(min_length=64, max_length=64, description="the manifest's hash")]
    leaves: Annotated[
        dict[str, Annotated[int, Field(ge=1, le=MAX_EXAMPLES)]], Field(description="examples of each silo")
    ]
    lost: Annotated[
        dict[str, Annotated[str, Field(max_length=500)]],
        Field(default_factory=dict, description="why it no longer has others"),
    ]


class Receipt(BaseModel):
    """The confirmation that a reply was accepted, now or before."""

    taken: bool = True


class JoinReply(BaseModel):
    """The confirmation that a silo has joined; a sub-coordinator learns which silos have replied."""

    silo: str
    round: int
    round_timeout: float | None = None
    task: str = ""
    answered: list[str] = []


def make_app(run: TaskQueue | RunView, tokens: Tokens | TokenFile | None) -> FastAPI:
    """Return the interface to a task queue, or only the page of any other run view."""
    app = FastAPI(
        title="FedILC coordinator",
        version=__version__,
        description="Silos ask for their next task and send replies; tensors are sent as safetensors.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.notifiers = []
    app.state.silos = len(run.silos) if isinstance(run, TaskQueue) else 0
    app.exception_handler(RequestValidationError)(_validation_error)
    auth = Auth(tokens)
    if tokens is None:
        app.add_middleware(OnlyLoopbackNames)
    audit = run.audit if isinstance(run, TaskQueue) else Audit()
    app.state.audit = audit
    app.add_middleware(AuditedRefusals, audit=audit)
    if isinstance(run, TaskQueue):
        _add_silos(app, run, auth)
    add_monitoring(app, run, auth)
    add_api_page(app)
    return app


async def _validation_error(_request: Request, error: Exception) -> JSONResponse:
    """Return one sentence, which repeats nothing of what was sent."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:2])
    return JSONResponse({"detail": f"{where}: {first['msg']}"[:300]}, 422)


class Admission:
    """Limits on the concurrent requests per silo, and on the replies decoded and uploaded at a time."""

    def __init__(self, queue: TaskQueue) -> None:
        self.queue = queue
        at_once = DECODED_BYTES // max(1, queue.manifest.program.answer_bytes)
        self.decoding = asyncio.Semaphore(min(_THREADS, max(2, at_once)))
        self.upload_slots = UploadSlots()
        self._busy: Counter[str] = Counter()

    @contextmanager
    def admit(self, silo: str, joining: bool = False) -> Iterator[None]:
        """Count a member's request while it is served; refuse unknown members and too many requests."""
        known = self.queue.knows(silo)
        if not known and not joining:
            raise HTTPException(404, f"no silo of this run is called {silo!r}")
        if self._busy[silo] >= MAX_CONCURRENT:
            detail = f"silo {silo!r} has {MAX_CONCURRENT} requests open already"
            raise HTTPException(429, detail, {"Retry-After": "1"})
        self._busy[silo] += 1
        if known:
            self.queue.mark_present(silo)
        try:
            yield
        finally:
            self._busy[silo] -= 1
            if not self._busy[silo]:
                del self._busy[silo]


def _add_silos(app: FastAPI, queue: TaskQueue, auth: Auth) -> None:
    """Add the routes of silos."""
    admission, notifier = Admission(queue), Notifier(queue.listen_for_tasks)
    app.state.notifiers.append(notifier)
    silos_only = [Depends(auth.require_silo)]
    schemas = [JoinRequest.model_json_schema(), SubCoordinatorJoin.model_json_schema()]
    joining = {"required": True, "content": {"application/json": {"schema": {"anyOf": schemas}}}}
    most_joining = _JOINING_BYTES + _LEAF_BYTES * len(queue.silos)

    @app.post(
        "/v1/silos/{silo}/join",
        dependencies=silos_only,
        responses=_REFUSALS,
        openapi_extra={"requestBody": joining},
    )
    async def join(request: Request, silo: SiloName) -> JoinReply:
        """Join the run; a silo that was away joins again."""
        with admission.admit(silo, joining=True):
            joining = _read_join((await read_body(request, most_joining, Spool())).content())
            if joining.manifest != queue.manifest.hash:
                raise HTTPException(409, "the silo has another manifest than this run's")
            if isinstance(joining, SubCoordinatorJoin):
                auth.require_carries(request, silo, joining.leaves)
                _raise(queue.join_carrier(silo, joining.leaves, joining.lost))
                task, answered = queue.answered(silo)
                patience, round_ = queue.round_timeout, queue.progress.round
                return JoinReply(
                    silo=silo, round=round_, round_timeout=patience, task=task, answered=answered
                )
            if silo not in queue.silos:
                raise HTTPException(404, f"no silo of this run is called {silo!r}")
            _raise(queue.join(silo, joining.examples))
            return JoinReply(silo=silo, round=queue.progress.round)

    @app.get(
        "/v1/silos/{silo}/task",
        dependencies=silos_only,
        responses=_REFUSALS | {200: {"content": {MEDIA_TYPE: _BYTES}}, 204: {"description": "no task yet"}},
        response_class=Response,
    )
    async def task(request: Request, silo: SiloName, have: Have = "", wait: Wait = 0.0) -> Response:
        """Wait for the silo's next task."""
        with admission.admit(silo):
            body = await _next_task(request, queue, notifier, silo, have, wait)
            return Response(status_code=204) if body is None else Response(body, media_type=MEDIA_TYPE)

    @app.put(
        "/v1/silos/{silo}/rounds/{number}/{step}",
        dependencies=silos_only,
        responses=_REFUSALS | {200: {"model": Receipt, "content": {MEDIA_TYPE: _BYTES}}},
        response_model=None,
        openapi_extra={"requestBody": {"required": True, "content": _TENSORS}},
    )
    async def answer(
        request: Request,
        silo: SiloName,
        number: Annotated[int, Path(ge=1, le=2**31, description="the round")],
        step: StepName,
        task: Annotated[str, Query(max_length=64, description="the task's name")],
        content_digest: Annotated[str | None, Header(description="sha-256, as in RFC 9530")] = None,
        have: Have = "",
        wait: Wait = 0.0,
    ) -> Response:
        """Send a reply, and receive the next task if one comes in time.

        Sending the same reply twice changes nothing.
        """
        with admission.admit(silo):
            max_bytes = queue.max_reply_bytes(silo, number, step, task)
            if isinstance(max_bytes, Refusal):
                raise HTTPException(max_bytes.status, max_bytes.reason)
            async with admission.upload_slots.slot() if max_bytes > _SMALL_BYTES else nullcontext():
                body = await read_body(request, max_bytes, queue.spool)
            queue.mark_seen(silo, received=body.size)
            accept = partial(queue.accept, silo, number, step, task, body, content_digest)
            if body.size < _SMALL_BYTES:
                _raise(accept())
            else:
                async with admission.decoding:
                    _raise(await run_in_threadpool(accept))
            del body, accept  # a waiting request must not keep in memory what was added up already
            following = await _next_task(request, queue, notifier, silo, have, wait) if wait else None
            if following is None:
                return JSONResponse(Receipt().model_dump())
            return Response(following, media_type=MEDIA_TYPE)


async def _next_task(
    request: Request, queue: TaskQueue, notifier: Notifier, silo: str, have: str, wait: float
) -> bytes | None:
    """Return the task's bytes; None if the time is up, the silo has disconnected, or the server stops."""
    notifier.attach()
    until = time.monotonic() + wait
    while True:
        open_request = queue.task_for(silo)
        if isinstance(open_request, Refusal):
            _raise(open_request)
        elif open_request is not None:
            to_carrier = silo not in queue.silos
            body = open_request.packed_body(have, to_carrier) or await run_in_threadpool(
                open_request.body, have, to_carrier
            )
            if body is None:
                continue
            queue.mark_seen(silo, sent=len(body))
            return body
        left = until - time.monotonic()
        if left <= 0 or notifier.closed:
            return None
        await notifier.wait(min(left, _WAKE_SECONDS))
        if await request.is_disconnected():
            return None


def _raise(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise HTTPException(refusal.status, refusal.reason)


def _read_join(body: bytes) -> JoinRequest | SubCoordinatorJoin:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        values = None
    try:
        kind = SubCoordinatorJoin if isinstance(values, dict) and "leaves" in values else JoinRequest
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"][:1])
        raise HTTPException(422, f"{where}: {first['msg']}"[:300]) from error


async def read_body(request: Request, max_bytes: int, spool: Spool) -> Body:
    """Read the body; refuse it if it is too large, stops coming, or ends before it is complete."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(415, "send the body without Content-Encoding")
    too_large = HTTPException(413, f"the body may have at most {max_bytes} bytes", {"Connection": "close"})
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:20]) > max_bytes:
        raise too_large
    body = Body(spool)
    clock = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(_READ_TIMEOUT_SECONDS) as silence:
            async for part in request.stream():
                silence.reschedule(clock() + _READ_TIMEOUT_SECONDS)
                if body.size + len(part) > max_bytes:
                    raise too_large
                body.write(part)
        return body
    except ClientDisconnect as error:
        raise HTTPException(400, "the body is not complete") from error
    except TimeoutError as error:
        raise HTTPException(408, f"nothing was received for {_READ_TIMEOUT_SECONDS:g} seconds") from error
    except OSError as error:
        raise HTTPException(503, "there is no room for this reply now", {"Retry-After": "5"}) from error
