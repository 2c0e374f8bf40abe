"""Requests to silos and their replies, the same in every runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from fedilc.aggregation.sums.packed import PackedSums
from fedilc.errors import ProtocolError
from fedilc.federation.steps import Step, check_tensors

Tensors = Mapping[str, Mapping[str, Tensor]]
Numbers = dict[str, float | None]


@dataclass(frozen=True)
class Request:
    """A request to the named silos for one step of a round.

    `weights` are w after `version` updates, so that a runtime can leave out weights that a silo already has.
    `tensors` and `numbers` are what the step sends besides w. `silo_weights` are the adaptive weights of
    silos, if any; sub-coordinators need them to add up replies, silos do not.
    """

    step: str
    round: int
    version: int
    silos: tuple[str, ...]
    weights: Mapping[str, Tensor]
    tensors: Tensors = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    silo_weights: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def asked(self) -> frozenset[str]:
        """Return the silos as a set, for fast look-ups among thousands."""
        return frozenset(self.silos)


@dataclass
class Reply:
    """One silo's reply: groups of tensors, numbers, and metrics.

    Metrics are those of the whole silo, and under "domains" those of each of its sub-domains.
    """

    silo: str
    step: str
    round: int
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the silos that this reply is for."""
        return (self.silo,)


@dataclass
class AggregatedReply:
    """A sub-coordinator's reply for its own silos: the sums of their tensors, and the rest of each reply.

    Args:
        replies: each silo's reply, without tensors.
        norms: the norms of each silo's groups of tensors; a group with an infinite norm is in no sum.
        sums: the sums of each group.
        lost: why other silos that were asked did not reply.
    """

    replies: dict[str, Reply]
    norms: dict[str, dict[str, float]]
    sums: dict[str, PackedSums]
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the silos that this reply is for."""
        return tuple(self.replies)


def check_reply(reply: Reply | AggregatedReply, request: Request, step: Step) -> None:
    """Raise if a reply does not belong to the request, or its names, shapes and dtypes are not the step's.

    Ranges of numbers and metrics are checked when a reply is read from a network (`check_numbers` and
    `check_metrics` of `steps.py`, called in `runtimes/remote/open_request.py`), and NaN and infinities in
    tensors when they are added up (`step_sums.py`).
    """
    if isinstance(reply, AggregatedReply):
        for one in reply.replies.values():
            _check_asked(one, request, step)
        return
    who = f"silo {reply.silo!r}"
    _check_asked(reply, request, step)
    check_tensors(reply.tensors, {name: answer.like for name, answer in step.answers.items()}, who)


def _check_asked(reply: Reply, request: Request, step: Step) -> None:
    who = f"silo {reply.silo!r}"
    if reply.silo not in request.asked:
        raise ProtocolError(f"{who} replied without being asked")
    if (reply.step, reply.round) != (request.step, request.round):
        raise ProtocolError(
            f"{who} replied to step {reply.step!r} of round {reply.round}, but was asked for step "
            f"{request.step!r} of round {request.round}"
        )
    if set(reply.numbers) != set(step.numbers):
        raise ProtocolError(f"{who} sent numbers {sorted(reply.numbers)}, not {sorted(step.numbers)}")
