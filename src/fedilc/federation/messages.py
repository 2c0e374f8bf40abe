"""What travels: requests to silos and their replies, the same for every runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from fedilc.aggregation.packed_sums import PackedSums
from fedilc.errors import ProtocolError
from fedilc.federation.steps import Step, check_tensors

Tensors = Mapping[str, Mapping[str, Tensor]]
Numbers = dict[str, float | None]


@dataclass(frozen=True)
class Request:
    """What the server asks of the named silos: one step of a round.

    `weights` are w after `version` updates: a runtime need not send a silo what it already has. `tensors` and
    `numbers` are what the step declares to be sent beside w. `silo_weights` are what the server has learnt
    of how much each silo counts: for those who add up, not for silos.
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
        """Return the silos as a set, since there may be thousands."""
        return frozenset(self.silos)


@dataclass
class Reply:
    """What one silo answers: groups of tensors, numbers, and metrics.

    Metrics are those of the whole silo by name, and under "domains" those of each of its sub-domains.
    """

    silo: str
    step: str
    round: int
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def silos(self) -> tuple[str, ...]:
        """The silo, as for an answer that is of several."""
        return (self.silo,)


@dataclass
class Carried:
    """What a sub-coordinator answers for silos of its own: sums of their tensors, all else of each.

    Args:
        carrier: the sub-coordinator's name.
        step: what was asked.
        round: in which round.
        replies: each silo's reply, without tensors.
        norms: of each silo's groups of tensors; one that is infinite is in no sum.
        sums: the sums of each group.
        lost: why other silos that were asked did not answer.
    """

    carrier: str
    step: str
    round: int
    replies: dict[str, Reply]
    norms: dict[str, dict[str, float]]
    sums: dict[str, PackedSums]
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def silos(self) -> tuple[str, ...]:
        """Those that it answers for."""
        return tuple(self.replies)


def check_reply(reply: Reply | Carried, request: Request, step: Step) -> None:
    """Raise if a reply is not an answer to `request` as the step declares it."""
    if isinstance(reply, Carried):
        for one in reply.replies.values():
            _check_asked(one, request, step)
        return
    who = f"silo {reply.silo!r}"
    _check_asked(reply, request, step)
    check_tensors(reply.tensors, {name: answer.like for name, answer in step.answers.items()}, who)


def _check_asked(reply: Reply, request: Request, step: Step) -> None:
    who = f"silo {reply.silo!r}"
    if reply.silo not in request.asked:
        raise ProtocolError(f"{who} answered without being asked")
    if (reply.step, reply.round) != (request.step, request.round):
        raise ProtocolError(
            f"{who} answered step {reply.step!r} of round {reply.round}, but was asked for step "
            f"{request.step!r} of round {request.round}"
        )
    if set(reply.numbers) != set(step.numbers):
        raise ProtocolError(
            f"{who} sent numbers {sorted(reply.numbers)}; expected were {sorted(step.numbers)}"
        )
