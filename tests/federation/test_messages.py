"""A reply must belong to its request."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedilc.aggregation import Mean
from fedilc.errors import ProtocolError
from fedilc.federation import AggregatedReply, Reply, Request
from fedilc.federation.protocol import Answer, Range, Step, check_reply

W = {"w": torch.zeros(2)}
STEP = Step("update", answers={"gradient": Answer(W, Mean())}, numbers={"loss": Range(0, 9)})
REQUEST = Request("update", 3, 2, ("a", "b"), W)
REPLY = Reply("a", "update", 3, {"gradient": W}, {"loss": 1.0})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"silo": "c"}, "'c' replied without being asked"),
        ({"round": 2}, "of round 2, but was asked for"),
        ({"step": "evaluate"}, "replied to step 'evaluate'"),
        ({"numbers": {}}, r"sent numbers \[\], not \['loss'\]"),
        ({"tensors": {}}, "sent tensors"),
    ],
)
def test_a_reply_to_something_else_is_refused_and_the_silo_named(change: dict, words: str) -> None:
    check_reply(REPLY, REQUEST, STEP)
    with pytest.raises(ProtocolError, match=words):
        check_reply(replace(REPLY, **change), REQUEST, STEP)


def test_each_reply_in_a_sub_coordinators_is_checked() -> None:
    aggregated = AggregatedReply({"a": replace(REPLY, tensors={})}, {}, {})
    check_reply(aggregated, REQUEST, STEP)
    assert aggregated.silos == ("a",)
    aggregated.replies["c"] = replace(REPLY, silo="c", tensors={})
    with pytest.raises(ProtocolError, match="'c' replied without being asked"):
        check_reply(aggregated, REQUEST, STEP)
