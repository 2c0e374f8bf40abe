"""The HTTP routes of silos: join the run, wait for a task, send a reply."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, RootModel
from starlette.concurrency import run_in_threadpool

from fedilc.federation.program import MAX_EXAMPLES
from fedilc.runtimes.remote.wire import MEDIA_TYPE
from fedilc.runtimes.rest.auth import Auth, SiloName
from fedilc.runtimes.rest.request_limits import RequestLimits, read_body, read_json, refusals
from fedilc.runtimes.rest.study_queue import StudyQueue
from fedilc.runtimes.rest.task_queue import Notifier, Spool, TaskQueue

MAX_POLL_SECONDS = 60.0
_WAKE_SECONDS = 5.0
_JOIN_BYTES = 4096
_JOIN_BYTES_PER_SILO = 2048
_SMALL_BYTES = 1 << 16
_REFUSALS = refusals(401, 403, 404, 408, 409, 410, 413, 415, 429)
_BYTES = {"schema": {"type": "string", "format": "binary"}}
_TENSORS = {MEDIA_TYPE: _BYTES, "application/octet-stream": _BYTES}

StepName = Annotated[str, Path(max_length=64, description="the step of the round")]
Have = Annotated[str, Query(max_length=64, description="the digest of the weights that it has")]
Wait = Annotated[float, Query(ge=0, le=MAX_POLL_SECONDS, description="seconds to wait for the next task")]


class _JsonObject(RootModel[dict[str, Any]]):
    """Any JSON object, before it is known which one."""


class _Join(BaseModel):
    model_config = ConfigDict(extra="forbid")

    manifest: Annotated[str, Field(min_length=64, max_length=64, description="the manifest's hash")]


class SiloJoin(_Join):
    """What a silo sends when it joins: how many examples it has (not with secure sums), and no more."""

    examples: Annotated[int, Field(ge=1, le=MAX_EXAMPLES)] | None = None


class SubCoordinatorJoin(_Join):
    """What a sub-coordinator sends when it joins, and again whenever its silos change."""

    silos: Annotated[
        dict[str, Annotated[int, Field(ge=1, le=MAX_EXAMPLES)]],
        Field(alias="leaves", description="examples of each silo"),
    ]
    lost: Annotated[
        dict[str, Annotated[str, Field(max_length=500)]],
        Field(default_factory=dict, description="why it no longer has others"),
    ]


class Receipt(BaseModel):
    """The confirmation that a reply was accepted, now or before."""

    taken: bool = True


class JoinReply(BaseModel):
    """The confirmation that a silo has joined.

    A sub-coordinator learns which of its silos have replied to the open task, and which ones it does not get,
    because they are connected elsewhere.
    """

    silo: str
    round: int
    round_timeout: float | None = None
    task: str = ""
    answered: list[str] = []
    elsewhere: dict[str, str] = {}


def add_silo_routes(app: FastAPI, queue: TaskQueue | StudyQueue, auth: Auth) -> None:
    """Add the routes of silos to an app."""
    limits, notifier = RequestLimits(queue), Notifier(queue.listen_for_tasks)
    app.state.notifiers.append(notifier)
    _add_join(app, queue, auth, limits)
    _add_tasks(app, queue, auth, limits, notifier)


def _add_join(app: FastAPI, queue: TaskQueue | StudyQueue, auth: Auth, limits: RequestLimits) -> None:
    schemas = [SiloJoin.model_json_schema(), SubCoordinatorJoin.model_json_schema()]
    content = {"required": True, "content": {"application/json": {"schema": {"anyOf": schemas}}}}
    max_bytes = _JOIN_BYTES + _JOIN_BYTES_PER_SILO * len(queue.silos)

    @app.post(
        "/v1/silos/{silo}/join",
        dependencies=[Depends(auth.require_silo)],
        responses=_REFUSALS,
        openapi_extra={"requestBody": content},
    )
    async def join(request: Request, silo: SiloName) -> JoinReply:
        """Join the run; a silo that was away joins again."""
        with limits.admit(silo, joining=True):
            body = (await read_body(request, max_bytes, Spool())).content()
            is_sub = "leaves" in read_json(_JsonObject, body).root
            kind: type[SiloJoin | SubCoordinatorJoin] = SubCoordinatorJoin if is_sub else SiloJoin
            joining = read_json(kind, body)
            if joining.manifest != queue.manifest.hash:
                raise HTTPException(409, "the silo has the manifest of another run")
            if isinstance(joining, SubCoordinatorJoin):
                auth.require_carries(request, silo, joining.silos)
                elsewhere = queue.join_sub_coordinator(silo, joining.silos, joining.lost)
                task, answered = queue.answered(silo)
                return JoinReply(
                    silo=silo,
                    round=queue.progress.round,
                    round_timeout=queue.round_timeout,
                    task=task,
                    answered=answered,
                    elsewhere=elsewhere,
                )
            if silo not in queue.silos:
                raise HTTPException(404, f"no silo of this run is called {silo!r}")
            if (joining.examples is None) != bool(queue.manifest.secure):
                raise HTTPException(422, "a silo says how many examples it has, except with secure sums")
            queue.join(silo, joining.examples)
            return JoinReply(silo=silo, round=queue.progress.round)


def _add_tasks(
    app: FastAPI, queue: TaskQueue | StudyQueue, auth: Auth, limits: RequestLimits, notifier: Notifier
) -> None:
    silos_only = [Depends(auth.require_silo)]
    no_task: dict[int | str, dict[str, Any]] = {204: {"description": "no task yet"}}

    @app.get(
        "/v1/silos/{silo}/task",
        dependencies=silos_only,
        responses=_REFUSALS | no_task | {200: {"content": {MEDIA_TYPE: _BYTES}}},
        response_class=Response,
    )
    async def task(request: Request, silo: SiloName, have: Have = "", wait: Wait = 0.0) -> Response:
        """Wait for the silo's next task."""
        with limits.admit(silo):
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
        with limits.admit(silo):
            await _receive_reply(request, queue, limits, silo, number, step, task, content_digest)
            following = await _next_task(request, queue, notifier, silo, have, wait) if wait else None
            if following is None:
                return JSONResponse(Receipt().model_dump())
            return Response(following, media_type=MEDIA_TYPE)


async def _receive_reply(
    request: Request,
    queue: TaskQueue | StudyQueue,
    limits: RequestLimits,
    silo: str,
    number: int,
    step: str,
    task: str,
    content_digest: str | None,
) -> None:
    """Receive a reply and put it into the queue; small ones in the event loop, others in a thread."""
    max_bytes = queue.max_reply_bytes(silo, number, step, task)
    async with limits.upload_slot() if max_bytes > _SMALL_BYTES else nullcontext():
        body = await read_body(request, max_bytes, queue.spool)
    queue.mark_seen(silo, received=body.size)
    accept = partial(queue.accept, silo, number, step, task, body, content_digest)
    if body.size < _SMALL_BYTES:
        accept()
    else:
        async with limits.decoding:
            await run_in_threadpool(accept)


async def _next_task(
    request: Request,
    queue: TaskQueue | StudyQueue,
    notifier: Notifier,
    silo: str,
    weights_digest: str,
    wait: float,
) -> bytes | None:
    """Return the task's bytes; None if the time is up, the silo has disconnected, or the server stops."""
    # Attached before the queue is asked: a task that is opened in between then wakes the wait below.
    notifier.attach()
    until = time.monotonic() + wait
    while True:
        open_request = queue.task_for(silo)
        if open_request is not None:
            to_sub_coordinator = silo not in queue.silos
            who = "" if to_sub_coordinator else silo
            body = open_request.packed_body(
                weights_digest, to_sub_coordinator, who
            ) or await run_in_threadpool(open_request.body, weights_digest, to_sub_coordinator, who)
            if body is None:  # closed while it was packed: ask for the next
                continue
            queue.mark_seen(silo, sent=len(body))
            return body
        left = until - time.monotonic()
        if left <= 0 or notifier.closed:
            return None
        await notifier.wait(min(left, _WAKE_SECONDS))
        if await request.is_disconnected():
            return None
