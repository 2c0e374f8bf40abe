"""The messages of secure sums: what a silo answers in each phase, and what all silos must have been sent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedilc.data.digests import tensors_digest
from fedilc.errors import ProtocolError
from fedilc.federation import Request
from fedilc.privacy.secure_sums import Hex, Offer, Shares, SumCollector, words_digest
from fedilc.privacy.words import COUNTS, SumForm
from fedilc.runtimes.remote.wire import MASK, task_name
from fedilc.section import Section
from fedilc.storage.files import json_digest

# The field of an answer by phase; masked words are a tensor.
ANSWERS = {"offer": "offer", "share": "sealed", "sign": "signature", "unmask": "shares"}
Name = Annotated[str, Field(max_length=500)]


class SecureAnswer(Section):
    """What a silo answers in one phase: what was asked for, or why not.

    `earlier` are the silos over which it has signed this total before. `state` is the round of the control
    variate that its masked words were computed with.
    """

    offer: Offer | None = None
    sealed: dict[Name, Annotated[str, Field(pattern="^([0-9a-f]{2})*$", max_length=1024)]] | None = None
    signature: Hex | None = None
    shares: Shares | None = None
    refused: Annotated[str, Field(max_length=1000)] | None = None
    earlier: list[Name] | None = None
    state: Annotated[int, Field(ge=0)] | None = None


class SecureMessage(Section):
    """What the coordinator sends in one phase."""

    phase: Annotated[str, Field(pattern=f"^(offer|share|{MASK}|sign|unmask)$")]
    part: Annotated[str, Field(pattern="^(counts|values)$")]
    attempt: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    offers: dict[Name, Offer] = Field(default_factory=dict)
    sealed: dict[Name, Hex] = Field(default_factory=dict)
    survivors: list[Name] = Field(default_factory=list)
    signatures: dict[Name, Hex] = Field(default_factory=dict)


class SurveyMessage(SecureMessage):
    """What the coordinator sends in one phase of a sum of the survey: also the columns that are kept."""

    kept: Annotated[str, Field(pattern="^([0-9a-f]{2})*$", max_length=1 << 16)] = ""


class SurveyAnswer(SecureAnswer):
    """What a silo answers in one phase of a sum of the survey."""

    attempt: str
    phase: str
    words: Annotated[str, Field(pattern="^([0-9a-f]{2})*$", max_length=1 << 25)] | None = None


def survey_digests(survey: str, kept: str) -> dict[str, str]:
    """Return digests of what a silo's summary depends on."""
    return {"survey": survey, "content": hashlib.sha256(f"{survey} {kept}".encode()).hexdigest()}


class PhaseAnswer(Protocol):
    """A silo's answer to a phase, with its masked words if that is the phase."""

    answer: SecureAnswer
    words: NDArray[Any] | None


Take = Callable[[str, PhaseAnswer], None]
Ask = Callable[[str, Mapping[str, Mapping[str, Any]], Take], None]


def run_attempt(
    collector: SumCollector,
    silos: Sequence[str],
    seen: Mapping[str, str],
    ask: Ask,
    check_states: Callable[[Mapping[str, int]], None] = lambda _states: None,
) -> NDArray[Any]:
    """Ask silos for all phases of an attempt, and return the total.

    `ask` sends a phase with each silo's own message, and gives every answer to a function; it raises if too
    few answer. `seen` are digests of what all silos must have been sent.
    """

    def add_offer(silo: str, reply: PhaseAnswer) -> None:
        collector.add_offer(silo, _given(reply.answer.offer))

    def add_sealed(silo: str, reply: PhaseAnswer) -> None:
        collector.add_sealed(silo, _given(reply.answer.sealed))

    def add_words(silo: str, reply: PhaseAnswer) -> None:
        collector.add_words(silo, _given(reply.words))
        if reply.answer.state is not None:
            states[silo] = reply.answer.state

    def add_signature(silo: str, reply: PhaseAnswer) -> None:
        collector.add_signature(silo, _given(reply.answer.signature), seen)

    def add_shares(silo: str, reply: PhaseAnswer) -> None:
        collector.add_shares(silo, _given(reply.answer.shares))

    def ask_all(phase: str, asked: Iterable[str], what: Mapping[str, Any], take: Take) -> None:
        ask(phase, dict.fromkeys(asked, what), take)

    states: dict[str, int] = {}
    ask_all("offer", silos, {}, add_offer)
    offers = {name: offer.model_dump() for name, offer in collector.offers.items()}
    ask_all("share", collector.offers, {"offers": offers}, add_sealed)
    ask(MASK, {silo: {"sealed": collector.sealed_for(silo)} for silo in collector.sealed}, add_words)
    check_states(states)
    ask_all("sign", collector.survivors, {"survivors": sorted(collector.survivors)}, add_signature)
    ask_all("unmask", collector.signatures, {"signatures": dict(collector.signatures)}, add_shares)
    return collector.total()


def _given(value: Any) -> Any:
    if value is None:
        raise ProtocolError("its answer lacks what was asked for")
    return value


def seen_digests(request: Request, run: str, weights_digest: str, sides: Tensor | None) -> dict[str, str]:
    """Return digests of all that a silo's answer depends on; signed, so that all silos were sent the same."""
    return {
        "task": task_name(request, run, weights_digest),
        "weights": weights_digest,
        "content": _content_digest(request, sides),
    }


def _content_digest(request: Request, sides: Tensor | None) -> str:
    """Return the digest of what an answer depends on beside the weights, and the silos in the sum."""
    tensors = {group: tensors_digest(found) for group, found in sorted(request.tensors.items())}
    numbers = {name: float(number) for name, number in request.numbers.items()}
    kept = "" if sides is None else words_digest(sides.numpy())
    return json_digest({"step": request.step, "numbers": numbers, "tensors": tensors, "sides": kept})


def own_digests(request: Request, run: str, sides: Tensor | None) -> dict[str, str]:
    """Return the same at a silo, which hashes the weights itself."""
    return seen_digests(request, run, tensors_digest(request.weights), sides)


def words_like(form: SumForm, part: str, kept: NDArray[np.bool_] | None) -> Tensor:
    """Return masked words as they travel, without storage."""
    dtype = torch.int32 if part == COUNTS else torch.int64
    return torch.empty(form.words(part, kept), dtype=dtype, device="meta")


def answer_of(**found: Any) -> dict[str, Any]:
    """Return an answer as JSON, without what is absent."""
    return SecureAnswer(**found).model_dump(exclude_none=True)
