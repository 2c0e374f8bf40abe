"""What a step of a round is: what the server sends beside w, what each silo answers, how it is aggregated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedilc.aggregation import Aggregator
from fedilc.errors import ProtocolError

Like = Mapping[str, Tensor]
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Range:
    """The least and the greatest value that a number may have."""

    least: float
    most: float

    def holds(self, value: object) -> bool:
        """Return whether a value is a number in this range, and no NaN.

        >>> Range(0, 1).holds(0.5), Range(0, 1).holds(True), Range(0, 1).holds(10**400)
        (True, False, False)
        """
        return (
            isinstance(value, float | int)
            and not isinstance(value, bool)
            and self.least <= value <= self.most
        )


@dataclass(frozen=True)
class Answer:
    """A group of tensors that each silo answers, and how the silos' groups become one.

    Args:
        like: tensors without storage, of the names, shapes and dtypes expected.
        aggregator: how the groups become one.
        weighted: whether the silos' weights apply.
        order: how its norm grows with the gradients': 1 as they do, 2 as their square.
        cancels: whether the silos' groups add up to little, so that one of E may be E times as long.
        exact: whether it travels in its own dtype on a wire that halves others.
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
        name: what it is called in messages, in logs and on the page.
        sends: groups of tensors that the server sends beside w, each as tensors without storage.
        sent_numbers: numbers that it sends, with their ranges.
        answers: groups of tensors that come back.
        numbers: numbers that come back, with their ranges.
        metrics: the ranges of metrics that come back, if it measures the model; empty if it does not.
        completes: whether the silo's part of the round is done with it.
    """

    name: str
    sends: Mapping[str, Like] = field(default_factory=dict)
    sent_numbers: Mapping[str, Range] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    numbers: Mapping[str, Range] = field(default_factory=dict)
    metrics: Mapping[str, Range] = field(default_factory=dict)
    completes: bool = False

    def describe(self, weights: Like) -> dict[str, Any]:
        """Return names and shapes, as a manifest shows them; tensors like w are said to be so."""

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


def check_tensors(got: Mapping[str, Like], expected: Mapping[str, Like], who: str) -> None:
    """Raise if groups of tensors are not like those expected."""
    _same_names(who, "tensors", got, expected)
    for group, like in expected.items():
        _same_names(who, f"{group} tensors", got[group], like)
        for name, tensor in like.items():
            found = got[group][name]
            if found.shape != tensor.shape or found.dtype != tensor.dtype:
                raise ProtocolError(
                    f"{who} sent {group} {name!r} as {found.dtype} of shape {tuple(found.shape)}; "
                    f"{tensor.dtype} of shape {tuple(tensor.shape)} was expected"
                )


def check_numbers(numbers: Any, expected: Mapping[str, Range]) -> None:
    """Raise unless these are numbers of the names and in the ranges expected."""
    if not isinstance(numbers, Mapping):
        raise ProtocolError("its numbers are not an object")
    if set(numbers) != set(expected):
        raise ProtocolError(f"its numbers are {_names(numbers)}; expected were {_names(expected)}")
    for key, range_ in expected.items():
        if not range_.holds(numbers[key]):
            raise ProtocolError(f"its {key} is not a number from {range_.least:g} to {range_.most:g}")


def check_metrics(metrics: Any, expected: Mapping[str, Range], most_domains: int = 1000) -> None:
    """Raise unless these are the metrics expected, for the whole silo and for each of its sub-domains.

    A silo without a validation set measures nothing.
    """
    if not isinstance(metrics, Mapping):
        raise ProtocolError("its metrics are not an object")
    if not metrics:
        return
    if not expected:
        raise ProtocolError("it measures the model, and was not asked to")
    own = {key: value for key, value in metrics.items() if key != DOMAINS}
    _check_set(own, expected, "")
    domains = metrics.get(DOMAINS, {})
    if not isinstance(domains, Mapping):
        raise ProtocolError("the metrics of its sub-domains are not an object")
    if len(domains) > most_domains:
        raise ProtocolError(f"it measures more than {most_domains} sub-domains")
    for name, found in domains.items():
        if not isinstance(name, str) or len(name) > _LONGEST_NAME or not isinstance(found, Mapping):
            raise ProtocolError(f"it measures the sub-domain {str(name)[:100]!r}, which is not a name")
        _check_set(found, expected, f" of {name[:100]!r}")


DOMAINS = "domains"
_LONGEST_NAME = 200


def _check_set(metrics: Mapping[str, Any], expected: Mapping[str, Range], where: str) -> None:
    for key in metrics:
        if key not in expected:
            raise ProtocolError(f"it measures {str(key)[:100]!r}{where}, which is no metric of this run")
    for key, range_ in expected.items():
        if key not in metrics:
            raise ProtocolError(f"it measures no {key}{where}")
        value = metrics[key]
        if value is not None and not Range(range_.least, range_.most + _ROUNDING).holds(value):
            raise ProtocolError(f"its {key}{where} is not a number from {range_.least:g} to {range_.most:g}")


def _same_names(who: str, what: str, got: Mapping[str, object], expected: Mapping[str, object]) -> None:
    if set(got) != set(expected):
        raise ProtocolError(f"{who} sent {what} {sorted(got)}; expected were {sorted(expected)}")


def _names(numbers: Mapping[str, object]) -> str:
    return ", ".join(sorted(str(name) for name in numbers))[:100] or "none"
