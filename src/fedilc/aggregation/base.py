"""The base class of aggregations: exact sums that start at zero, accumulate, merge, and are finalized.

`Aggregator` is the base class, `Accumulation` streams values into one, and `Clipped` limits the norms of the
values of any aggregation. Helpers that all aggregations share follow.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedilc.aggregation.exact_sum import ExactSum
from fedilc.aggregation.packed_sums import Sums, add_packed, pack_sums
from fedilc.aggregation.signed_logs import SignedLogs
from fedilc.errors import ConfigError, NonFiniteError

Share = Annotated[float, Field(ge=0, le=1)]
_STACK_BUDGET = 1 << 22  # numbers that a stack of products may hold
_CPU = torch.device("cpu")
_SIGNS = "signs"


@dataclass(frozen=True)
class Aggregate:
    """The aggregated value by parameter, with measurements as {measurement: {parameter: number}}."""

    value: dict[str, Tensor]
    measurements: dict[str, dict[str, float]] = field(default_factory=dict)


class Aggregator(ABC):
    """How many values of one coordinate become one.

    Attributes:
        takes_weights: whether a reply may have a weight.
        by_sign: whether it needs four sums besides those of the terms: "positives" and "negatives", how many
            values have that sign, and "log_positive" and "log_negative", the sums of log2|g| over them.
        keeps_values: whether it is no function of sums: its state keeps every value, so that it needs every
            reply itself, and memory grows with their number (`order_statistics.py`).
        max_norm: the norm to which replies are clipped.
        bounded_terms: the largest magnitudes of terms that are bounded for any values; a sub-coordinator's
            sums are checked against them.

    >>> class RootMeanSquare(Aggregator):
    ...     def terms(self, values):
    ...         return {"squares": values.double().square()}
    ...     def finish(self, count, sums):
    ...         return (sums["squares"] / count).sqrt(), {}
    >>> rule = RootMeanSquare()
    >>> state = rule.zero({"w": torch.zeros(1)})
    >>> for value in (1.0, -7.0):
    ...     state = rule.accumulate(state, {"w": torch.tensor([value])})
    >>> rule.finalize(state).value["w"]
    tensor([5.])
    """

    takes_weights = False
    by_sign = False
    keeps_values = False
    max_norm = math.inf
    bounded_terms: Mapping[str, float] = MappingProxyType({})

    @abstractmethod
    def terms(self, values: Tensor) -> dict[str, Tensor]:
        """Return what each element of `values` adds to each sum; sums are exact."""

    @abstractmethod
    def finish(self, count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the aggregate of one parameter from its sums in float64, and its measurements."""

    def zero(self, like: Mapping[str, Tensor]) -> Sums:
        """Return the empty state for parameters of these names, shapes, dtypes and devices."""
        shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in like.items()}
        devices = {name: tensor.device for name, tensor in like.items()}
        sums = {
            name: self._empty_sums(shapes[name], summing_device(device)) for name, device in devices.items()
        }
        return Sums(shapes, devices, sums, ExactSum(torch.Size(), _CPU))

    def accumulate(
        self,
        state: Sums,
        values: Mapping[str, Tensor],
        source: str = "a value",
        weight: float | None = None,
    ) -> Sums:
        """Add one reply, in place; an error about a NaN or an infinity in it names `source`.

        With `weight`, a reply counts that many times in a mean: the product is rounded once to float64.
        After an error the state must not be used again.
        """
        if weight is not None and not self.takes_weights:
            raise ConfigError(f"{type(self).__name__} counts every value once and takes no weights")
        for name, value in values.items():
            self._add(state, name, value.unsqueeze(0) if weight is None else _weighted(value, weight), source)
        state.counted(1, weight)
        return state

    def stream(self, like: Mapping[str, Tensor], source: str) -> Accumulation:
        """Return an empty accumulation, for values that arrive parameter by parameter."""
        return Accumulation(self, self.zero(like), source)

    def merge(self, left: Sums, right: Sums) -> Sums:
        """Return the state of both sides' values, in a new object."""
        both = deepcopy(left)
        both.counted(right.count)
        both.weighted += right.weighted
        both.weights.add_digits(*right.weights.digits())
        add_packed(both, pack_sums(right, right.count), right.count)
        return both

    def finalize(self, state: Sums) -> Aggregate:
        """Return the aggregate in the dtype of the values, with its measurements."""
        if state.count == 0:
            raise ValueError("nothing was accumulated: there is no aggregate of zero values")
        value: dict[str, Tensor] = {}
        measurements: dict[str, dict[str, float]] = {}
        count = state.total_weight()
        for name, like in state.like.items():
            result, measured = self._finalize_one(state, name, count)
            value[name] = result.to(like.dtype).to(state.devices[name])
            for key, number in measured.items():
                measurements.setdefault(key, {})[name] = number
        return Aggregate(value, measurements)

    def _empty_sums(self, like: Tensor, device: torch.device) -> dict[str, ExactSum | SignedLogs]:
        """Return the empty sums of one parameter."""
        sums: dict[str, ExactSum | SignedLogs] = {}
        for key in self.terms(torch.empty(0, dtype=like.dtype)):
            sums[key] = ExactSum(like.shape, device)
        return sums | ({_SIGNS: SignedLogs(like.shape, like.dtype, device)} if self.by_sign else {})

    def _add(self, state: Sums, name: str, stack: Tensor, source: str, index: Tensor | None = None) -> None:
        """Add values stacked along the first axis to one parameter; the caller counts them.

        With `index`, stack[i] is added at row index[i] of the parameter only.
        """
        terms = self.terms(stack) | ({_SIGNS: stack} if self.by_sign else {})
        for key, term in terms.items():
            if not state.sums[name][key].add(term, index):
                require_finite(stack, source, name)
                raise NonFiniteError(f"the term {key!r} of {name!r} is not finite; see {type(self).__name__}")

    def _add_outer(self, state: Sums, name: str, left: Tensor, right: Tensor, source: str) -> None:
        """Add the outer products left_i right_i^T, one for each row; the caller counts them."""
        self._add_products(state, name, left.unsqueeze(1), right.unsqueeze(1), source)

    def _add_products(self, state: Sums, name: str, left: Tensor, right: Tensor, source: str) -> None:
        """Add left_e^T right_e, one value for each e; the caller counts them."""
        shape = state.like[name].shape
        rows = max(1, _STACK_BUDGET // shape.numel())
        for d, a in zip(left.split(rows), right.split(rows), strict=True):
            self._add(state, name, (d.transpose(1, 2) @ a).view(-1, *shape), source)

    def _finalize_one(self, state: Sums, name: str, count: float) -> tuple[Tensor, dict[str, float]]:
        """Return the aggregate of one parameter from a total weight, and the measurements of it."""
        sums: dict[str, Tensor] = {}
        for key, part in state.sums[name].items():
            if isinstance(part, ExactSum):
                sums[key] = part.total()
            else:
                (sums["positives"], sums["negatives"]), logs = part.counts_and_logs()
                sums["log_positive"], sums["log_negative"] = logs
        return self.finish(count, sums)


@dataclass
class Accumulation:
    """An aggregator with its state, into which a silo streams the gradients of its environments."""

    aggregator: Aggregator
    state: Sums
    source: str

    def stack(self, name: str, values: Tensor) -> None:
        """Add one value per row."""
        self.aggregator._add(self.state, name, values, self.source)

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        """Add one outer product per row."""
        self.aggregator._add_outer(self.state, name, left, right, self.source)

    def products(self, name: str, left: Tensor, right: Tensor) -> None:
        """Add left_e^T right_e for each e, the value of the parameter flattened to a matrix."""
        self.aggregator._add_products(self.state, name, left, right, self.source)

    def rows(self, name: str, index: Tensor, rows: Tensor) -> None:
        """Add values that each have a single non-zero row, at the row of the parameter that `index` says."""
        self.aggregator._add(self.state, name, rows, self.source, index)

    def counted(self, values: int) -> None:
        """Count values, after they have been added to every parameter."""
        self.state.counted(values)


def _weighted(value: Tensor, weight: float) -> Tensor:
    return (value.detach().to(summing_device(value.device)).double() * weight).unsqueeze(0)


def summing_device(device: torch.device) -> torch.device:
    """Return the device on which sums for a device are kept: itself, or the CPU if it has no float64."""
    return _CPU if device.type == "mps" else device


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 for devices without float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def is_finite(values: Tensor) -> bool:
    """Return whether no value is NaN or infinite, from minimum and maximum in one pass without a mask.

    >>> is_finite(torch.tensor([1.0, -2.0])), is_finite(torch.tensor([1.0, float("nan"), 2.0]))
    (True, False)
    """
    if values.numel() == 0 or not values.is_floating_point():
        return True
    low, high = torch.aminmax(values)
    return math.isfinite(low) and math.isfinite(high)


def require_finite(values: Tensor, source: str, parameter: str) -> None:
    """Raise an error naming silo and parameter if `values` holds a NaN or an infinity."""
    if not is_finite(values):
        raise not_finite(source, parameter)


def not_finite(source: str, parameter: str) -> NonFiniteError:
    """Return the error that says who sent a NaN or an infinity for which parameter."""
    return NonFiniteError(
        f"{source} sent a NaN or infinite value for {parameter!r}; check its data for extreme "
        "values, or lower the learning rate or the penalty"
    )


def measured_signs(result: Tensor, agreement: float) -> dict[str, float]:
    """Return how far signs agree, and the share of coordinates that became 0."""
    zeros = result.numel() - int(torch.count_nonzero(result))
    return {"sign_agreement": agreement, "zero_share": zeros / max(1, result.numel())}


def norm_of(tensors: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm of named tensors together; infinite if they hold a NaN.

    >>> norm_of({"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([-4.0])})
    5.0
    """
    parts = [
        float(torch.linalg.vector_norm(tensor.detach().reshape(-1), dtype=wide_dtype(tensor.device)))
        for tensor in tensors.values()
    ]
    norm = math.hypot(*parts)
    return math.inf if math.isnan(norm) else norm


class Clipped(Aggregator):
    """Scale every value that is longer than `max_norm` down to that norm before `inner` adds it.

    >>> from fedilc.aggregation import Mean
    >>> clipped = Clipped(Mean(), 1.0)
    >>> state = clipped.accumulate(clipped.zero({"w": torch.zeros(2)}), {"w": torch.tensor([3.0, 4.0])})
    >>> clipped.finalize(state).value["w"]
    tensor([0.6000, 0.8000])
    """

    def __init__(self, inner: Aggregator, max_norm: float) -> None:
        if not max_norm > 0:
            raise ConfigError(f"max_norm={max_norm} must be greater than 0")
        self.inner, self.max_norm = inner, max_norm
        self.takes_weights, self.by_sign = inner.takes_weights, inner.by_sign
        self.keeps_values, self.bounded_terms = inner.keeps_values, inner.bounded_terms

    def terms(self, values: Tensor) -> dict[str, Tensor]:
        """Return the inner aggregation's terms."""
        return self.inner.terms(values)

    def finish(self, count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the inner aggregation's result."""
        return self.inner.finish(count, sums)

    def zero(self, like: Mapping[str, Tensor]) -> Sums:
        """Return the inner aggregation's empty state."""
        return self.inner.zero(like)

    def merge(self, left: Sums, right: Sums) -> Sums:
        """Return the state of both sides' values."""
        return self.inner.merge(left, right)

    def accumulate(
        self,
        state: Sums,
        values: Mapping[str, Tensor],
        source: str = "a value",
        weight: float | None = None,
    ) -> Sums:
        """Add one reply, scaled down to `max_norm` if it is longer."""
        norm = norm_of(values)
        if self.max_norm < norm < math.inf:
            values = {name: tensor * (self.max_norm / norm) for name, tensor in values.items()}
        return self.inner.accumulate(state, values, source, weight)

    def finalize(self, state: Sums) -> Aggregate:
        """Return the inner aggregation's aggregate."""
        return self.inner.finalize(state)
