"""What travels: requests to silos and their replies, the same for every runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from fedilc.aggregation import Aggregator, Sums
from fedilc.errors import ProtocolError

Phase = Literal["statistics", "gradients", "evaluate"]


@dataclass(frozen=True)
class Request:
    """What the server asks of the named silos.

    `weights` are w after `version` updates: a runtime need not send a silo what it already has.
    `variance` (mean C over the silos asked) and `penalty` (lambda of this round) come with the
    gradients phase of a two-phase round, and are None in every other request.
    """

    phase: Phase
    round: int
    version: int
    silos: tuple[str, ...]
    weights: Mapping[str, Tensor]
    variance: Tensor | None = None
    penalty: float | None = None

    @cached_property
    def asked(self) -> frozenset[str]:
        """The silos as a set, since there may be thousands."""
        return frozenset(self.silos)


@dataclass
class Reply:
    """What one silo answers: tensors by kind ("variance", "gradient", "penalty"), and numbers.

    "variance" holds C_e under the one name "C".
    """

    silo: str
    phase: Phase
    round: int
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    numbers: dict[str, float | None] = field(default_factory=dict)


def domain_key(domain: str, metric: str) -> str:
    """How a reply's numbers name a metric of one sub-domain of the silo.

    >>> domain_key("-40°", "accuracy")
    'accuracy of -40°'
    """
    return f"{metric} of {domain}"


def norm_key(kind: str) -> str:
    """Return how the numbers of a silo name the norm of its answer.

    >>> norm_key("gradient")
    'norm of gradient'
    """
    return f"norm of {kind}"


class Runtime(Protocol):
    """Anything that can put a request to silos and yield their replies as they come.

    A silo that is lost yields nothing; the server compares who answered with who was asked.
    """

    def ask(self, request: Request) -> Iterator[Reply]: ...


@runtime_checkable
class WatchfulRuntime(Runtime, Protocol):
    """A runtime that knows which silos are there before it asks them."""

    def present(self) -> tuple[str, ...]:
        """The silos to ask in the next round; waits until there are enough."""
        ...


@runtime_checkable
class InformedRuntime(Runtime, Protocol):
    """A runtime that shows how silos are doing."""

    def set_aside(self, round_: int, reasons: Mapping[str, str]) -> None:
        """A round goes on without the answers of these silos, for these reasons."""
        ...

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """These silos are not asked any more, for these reasons."""
        ...

    def reasons(self, silos: Sequence[str]) -> Mapping[str, str]:
        """Why some of these silos did not answer, as far as that is known."""
        ...


Numbers = dict[str, dict[str, float | None]]


@runtime_checkable
class CollectiveRuntime(Runtime, Protocol):
    """A runtime of several processes, each of which runs the server over its own silos."""

    def mine(self, silos: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the silos that this process asks."""
        ...

    def combine(self, sums: Sequence[tuple[Aggregator, Sums]], answers: Numbers | None) -> Numbers:
        """Add up the sums of all processes in place; collect the numbers of their silos, if there are any."""
        ...


def check_reply(reply: Reply, request: Request, expected: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Raise where a reply is not an answer to `request` with tensors like those `expected`."""
    who = f"silo {reply.silo!r}"
    if reply.silo not in request.asked:
        raise ProtocolError(f"{who} answered without being asked")
    if (reply.phase, reply.round) != (request.phase, request.round):
        raise ProtocolError(
            f"{who} answered phase {reply.phase!r} of round {reply.round}, but was asked for phase "
            f"{request.phase!r} of round {request.round}"
        )
    _same_names(who, "kinds of tensors", reply.tensors, expected)
    for kind, like in expected.items():
        _same_names(who, f"{kind} tensors", reply.tensors[kind], like)
        for name, tensor in like.items():
            got = reply.tensors[kind][name]
            if got.shape != tensor.shape or got.dtype != tensor.dtype:
                raise ProtocolError(
                    f"{who} sent {kind} {name!r} as {got.dtype} of shape {tuple(got.shape)}; "
                    f"{tensor.dtype} of shape {tuple(tensor.shape)} was expected"
                )


def _same_names(who: str, what: str, got: Mapping[str, object], expected: Mapping[str, object]) -> None:
    if set(got) != set(expected):
        raise ProtocolError(f"{who} sent {what} {sorted(got)}; expected were {sorted(expected)}")


def in_order(replies: Iterator[Reply], silos: Sequence[str]) -> Iterator[Reply]:
    """The same replies in the order the silos were asked, holding back only those that are early.

    Sums then add up in one order whatever the network does, so their last bits do not depend on it.
    """
    early: dict[str, Reply] = {}
    waiting = list(silos)
    for reply in replies:
        if reply.silo in waiting:
            early[reply.silo] = reply
        while waiting and waiting[0] in early:
            yield early.pop(waiting.pop(0))
    for silo in waiting:
        if silo in early:
            yield early.pop(silo)
