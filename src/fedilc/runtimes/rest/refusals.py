"""Refuse requests with an HTTP status and one sentence, which repeats nothing of the request."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

from fedilc.runtimes.rest.status import Refusal

_MAX_LENGTH = 300
Model = TypeVar("Model", bound=BaseModel)


class Reason(BaseModel):
    """Why a request was refused, in one sentence."""

    detail: str


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return a route's refusals as OpenAPI documents them."""
    return {status: {"model": Reason} for status in (400, *statuses, 422)}


def raise_refusal(refusal: Refusal | None) -> None:
    """Raise if the task queue has refused a request."""
    if refusal is not None:
        raise HTTPException(refusal.status, refusal.reason)


def read_json(model: type[Model], body: bytes) -> Model:
    """Return a validated body; refuse one that is not valid with 422."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise HTTPException(422, _sentence(first["loc"][:1], first["msg"])) from error


async def parameters_not_valid(_request: Request, error: Exception) -> JSONResponse:
    """Refuse a path or query parameter that is not valid."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return JSONResponse({"detail": _sentence(first["loc"][1:2], first["msg"])}, 422)


def _sentence(place: tuple[Any, ...], message: str) -> str:
    return f"{'.'.join(str(part) for part in place)}: {message}"[:_MAX_LENGTH]
