"""A refusal is a status and one short sentence, which repeats nothing of the request."""

from __future__ import annotations

import pytest
from fastapi import HTTPException
from pydantic import BaseModel

from fedilc.runtimes.rest.refusals import raise_refusal, read_json, refusals
from fedilc.runtimes.rest.status import Refusal


class Body(BaseModel):
    examples: int


def test_a_refusal_of_the_queue_becomes_its_status_and_reason() -> None:
    raise_refusal(None)
    with pytest.raises(HTTPException) as refused:
        raise_refusal(Refusal(409, "no task is open"))
    assert (refused.value.status_code, refused.value.detail) == (409, "no task is open")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"examples": "secret"}', b"{" * 10_000, b"\xff"])
def test_a_body_that_is_not_valid_is_422_and_not_repeated(body: bytes) -> None:
    assert read_json(Body, b'{"examples": 3}').examples == 3
    with pytest.raises(HTTPException) as refused:
        read_json(Body, body)
    assert refused.value.status_code == 422
    assert len(refused.value.detail) <= 300
    assert "secret" not in refused.value.detail


def test_every_route_documents_that_a_request_may_not_be_valid() -> None:
    assert set(refusals(404)) == {400, 404, 422}
