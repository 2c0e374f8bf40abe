"""What server and silos say to each other, the same in every runtime.

`Step` declares what a step sends and what each silo answers; `Request` and `Reply` are one such exchange.
`check_reply` and the checks below it compare a reply with its step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from fedilc.aggregation import Aggregator, Sums
from fedilc.aggregation.packed_sums import PackedSums
from fedilc.errors import ProtocolError, printable

DOMAINS = "domains"
_MAX_DOMAINS = 1000
_MAX_NAME_LENGTH = 200

Like = Mapping[str, Tensor]
Tensors = Mapping[str, Mapping[str, Tensor]]
Numbers = dict[str, float | None]
# The replies of silos without their tensors: numbers, norms and metrics, by silo.
SiloNumbers = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Range:
    """The smallest and the largest value that a number may have."""

    minimum: float
    maximum: float

    def holds(self, value: object) -> bool:
        """Return whether a value is a number in this range; NaN and booleans are not.

        >>> Range(0, 1).holds(0.5), Range(0, 1).holds(True), Range(0, 1).holds(10**400)
        (True, False, False)
        """
        return (
            isinstance(value, float | int)
            and not isinstance(value, bool)
            and self.minimum <= value <= self.maximum
        )


@dataclass(frozen=True)
class Answer:
    """A group of tensors in each silo's reply, and how the groups of all silos are aggregated.

    Args:
        like: tensors without storage, of the names, shapes and dtypes expected.
        aggregator: how the groups are aggregated.
        weighted: whether the silos' weights apply.
        order: 1 if its norm is proportional to the norm of the gradients, 2 if to its square.
        cancels: whether the groups of E silos nearly add up to zero, as the terms of a penalty do, and the
            changes of control variates once they have settled; one group may be E times as long as usual.
        exact: whether it is sent in its own dtype even if others are sent as float16.
    """

    like: Like
    aggregator: Aggregator
    weighted: bool = False
    order: int = 1
    cancels: bool = False
    exact: bool = False


@dataclass(frozen=True)
class Step:
    """One step of a round.

    Args:
        name: its name in messages, in logs and on the page.
        sends: groups of tensors that the server sends besides w, each as tensors without storage.
        sent_numbers: numbers that the server sends, with their ranges.
        answers: groups of tensors in a reply.
        numbers: numbers in a reply, with their ranges.
        metrics: metrics in a reply, with their ranges; empty if the step does not evaluate the model.
        completes: whether it is the step in which a silo computes its update, the last one of a round.
    """

    name: str
    sends: Mapping[str, Like] = field(default_factory=dict)
    sent_numbers: Mapping[str, Range] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    numbers: Mapping[str, Range] = field(default_factory=dict)
    metrics: Mapping[str, Range] = field(default_factory=dict)
    completes: bool = False

    def describe(self, weights: Like) -> dict[str, Any]:
        """Return names and shapes for the manifest; "parameters" stands for those of w."""

        def shapes(like: Like) -> str | dict[str, list[int]]:
            if like is weights:
                return "parameters"
            return {name: list(tensor.shape) for name, tensor in like.items()}

        return {
            "sends": {name: shapes(like) for name, like in self.sends.items()},
            "sends_numbers": sorted(self.sent_numbers),
            "answers": {name: shapes(answer.like) for name, answer in self.answers.items()},
            "answers_numbers": sorted(self.numbers),
            "metrics": sorted(self.metrics),
        }


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

    Metrics are those of the whole silo, and under "domains" those of each of its sub-domains. `checked` says
    that names, shapes and dtypes of the tensors were compared with the step when the reply was read from a
    network.
    """

    silo: str
    step: str
    round: int
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    checked: bool = field(default=False, compare=False)

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


@dataclass
class TotalReply:
    """The sums of all silos' replies to a step, where no single silo's reply is known.

    Args:
        silos: whose replies are in the sums.
        sums: the sums of each group of tensors.
        numbers: the sums of numbers; that of losses has the silos' weights.
        weight: the sum of the silos' weights.
        metrics: the sum of each metric, and over how many silos it is.
    """

    silos: tuple[str, ...]
    sums: dict[str, Sums]
    numbers: dict[str, float]
    weight: float
    metrics: dict[str, tuple[float, int]] = field(default_factory=dict)


def check_reply(reply: Reply | AggregatedReply, request: Request, step: Step) -> None:
    """Raise if a reply does not belong to the request, or its names, shapes and dtypes are not the step's.

    Replies from a network are checked when they are read (`runtimes/remote/open_request.py`): their tensors,
    and with `check_numbers` and `check_metrics` the ranges of their numbers. NaN and infinities in tensors
    are found when they are added up (`step_sums.py`).
    """
    if isinstance(reply, AggregatedReply):
        for one in reply.replies.values():
            _check_asked(one, request, step)
        return
    _check_asked(reply, request, step)
    if not reply.checked:
        expected = {name: answer.like for name, answer in step.answers.items()}
        check_tensors(reply.tensors, expected, f"silo {reply.silo!r}")


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


def check_tensors(got: Mapping[str, Like], expected: Mapping[str, Like], who: str) -> None:
    """Raise if groups of tensors do not have the names, shapes and dtypes expected."""
    _same_names(who, "tensors", got, expected)
    for group, like in expected.items():
        _same_names(who, f"{group} tensors", got[group], like)
        for name, tensor in like.items():
            found = got[group][name]
            if found.shape != tensor.shape or found.dtype != tensor.dtype:
                raise ProtocolError(
                    f"{who} sent {group} {name!r} as {found.dtype} of shape {tuple(found.shape)}, not as "
                    f"{tensor.dtype} of shape {tuple(tensor.shape)}"
                )


def check_numbers(
    numbers: Any,
    expected: Mapping[str, Range],
    what: str = "numbers",
    where: str = "",
    may_miss: bool = False,
) -> None:
    """Raise if numbers do not have the names expected, or are outside their ranges.

    With `may_miss` a number may be None, because it is not defined.
    """
    if not isinstance(numbers, Mapping):
        raise ProtocolError(f"its {what}{where} are not an object")
    if set(numbers) != set(expected):
        raise ProtocolError(f"its {what}{where} are {_names(numbers)}, not {_names(expected)}")
    for key, range_ in expected.items():
        if not range_.holds(numbers[key]) and not (may_miss and numbers[key] is None):
            limits = f"{range_.minimum:g} to {range_.maximum:g}"
            raise ProtocolError(f"its {key}{where} is not a number from {limits}")


def check_metrics(metrics: Any, expected: Mapping[str, Range]) -> None:
    """Raise if metrics, of the whole silo or of one of its sub-domains, are not those expected.

    A silo without a validation set has no metrics.
    """
    if not isinstance(metrics, Mapping):
        raise ProtocolError("its metrics are not an object")
    if not metrics:
        return
    if not expected:
        raise ProtocolError("it sent metrics although the step has none")
    own = {key: value for key, value in metrics.items() if key != DOMAINS}
    check_numbers(own, expected, "metrics", may_miss=True)
    domains = metrics.get(DOMAINS, {})
    if not isinstance(domains, Mapping):
        raise ProtocolError("the metrics of its sub-domains are not an object")
    if len(domains) > _MAX_DOMAINS:
        raise ProtocolError(f"it sent metrics of more than {_MAX_DOMAINS} sub-domains")
    for name, found in domains.items():
        if not isinstance(name, str) or len(name) > _MAX_NAME_LENGTH:
            raise ProtocolError(f"it sent metrics of a sub-domain without a valid name, {str(name)[:100]!r}")
        check_numbers(found, expected, "metrics", f" of {name[:100]!r}", may_miss=True)


def _same_names(who: str, what: str, got: Mapping[str, object], expected: Mapping[str, object]) -> None:
    if set(got) != set(expected):
        raise ProtocolError(f"{who} sent {what} {sorted(got)}, not {sorted(expected)}")


def _names(numbers: Mapping[str, object]) -> str:
    return printable(", ".join(sorted(str(name) for name in numbers)))[:100] or "none"
