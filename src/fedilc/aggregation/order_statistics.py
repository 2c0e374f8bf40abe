"""The trimmed mean and the median of silos, per coordinate: a few wrong values cannot move them far.

Neither is a function of sums, so the state keeps every value: memory is O(values x parameters). Values are
sorted before they are used, so the result does not depend on the order in which they came.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedilc.aggregation.base import Aggregator, require_finite, summing_device
from fedilc.aggregation.packed_sums import Sums
from fedilc.algorithms.registry import checks_options

_PIECE = 1 << 20  # numbers that are sorted at a time, so that sorting needs little more memory
_ROUNDING = 1e-9  # 0.29 * 100 is 28.999999999999996, whose floor would be one too low


@dataclass
class KeptValues(Sums):
    """All values of each parameter, as stacks along a first axis, in the order in which they came."""

    stacks: dict[str, list[Tensor]] = field(default_factory=dict)

    def stack(self, name: str) -> Tensor:
        """Return all values of a parameter along the first axis."""
        parts = self.stacks[name]
        if parts:
            return torch.cat(parts)
        like, device = self.like[name], summing_device(self.devices[name])
        return torch.empty(0, *like.shape, dtype=like.dtype, device=device)

    def exchange(self, gather: Callable[[Tensor], Tensor]) -> None:
        """Take in the values of all processes, in place; `gather` returns the rows of all of them."""
        for name in self.stacks:
            self.stacks[name] = [gather(self.stack(name))]


class OrderStatistic(Aggregator):
    """The mean of the middle of the sorted values of each coordinate; values at both ends are dropped."""

    keeps_values = True

    @abstractmethod
    def dropped(self, count: int) -> int:
        """Return how many of `count` values are dropped at each end; at least one is left."""

    def terms(self, _values: Tensor) -> dict[str, Tensor]:
        """Return nothing: an order statistic is not a function of sums."""
        return {}

    def finish(self, _count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the mean of the middle values of the stack "values", added in ascending order."""
        stack = sums["values"]
        count, drop = len(stack), self.dropped(len(stack))
        rows = stack.reshape(count, -1)
        result = torch.empty(rows.shape[1], dtype=torch.float64, device=rows.device)
        for start in range(0, rows.shape[1], max(1, _PIECE // count)):
            piece = slice(start, start + max(1, _PIECE // count))
            middle = rows[:, piece].sort(0).values[drop : count - drop].double()
            total = middle[0]
            for row in middle[1:]:
                total = total + row
            result[piece] = total / len(middle)
        return result.view(stack.shape[1:]), {}

    def zero(self, like: Mapping[str, Tensor]) -> KeptValues:
        """Return the empty state for parameters of these names, shapes, dtypes and devices."""
        empty = super().zero(like)
        stacks: dict[str, list[Tensor]] = {name: [] for name in like}
        return KeptValues(empty.like, empty.devices, empty.sums, empty.weights, stacks=stacks)

    def merge(self, left: Sums, right: Sums) -> KeptValues:
        """Return the state of both sides' values, in a new object."""
        assert isinstance(left, KeptValues)
        assert isinstance(right, KeptValues)
        both = copy(left)
        both.stacks = {name: [*parts, *right.stacks[name]] for name, parts in left.stacks.items()}
        both.counted(right.count)
        return both

    def _add(self, state: Sums, name: str, stack: Tensor, source: str, index: Tensor | None = None) -> None:
        """Keep values stacked along the first axis; with `index`, stack[i] is row index[i] of its value."""
        assert isinstance(state, KeptValues)
        require_finite(stack, source, name)
        # Adding 0 makes a copy, because a silo may reuse its tensors, and turns -0 into 0: sorting takes them
        # for equal, so that their order, and the sign of a result of 0, would depend on the order of arrival.
        values = stack.detach().to(summing_device(stack.device)) + 0.0
        if index is not None:
            rows, values = values, values.new_zeros(len(stack), *state.like[name].shape)
            values[torch.arange(len(stack)), index] = rows
        state.stacks[name].append(values)

    def _finalize_one(self, state: Sums, name: str, _count: float) -> tuple[Tensor, dict[str, float]]:
        """Return the aggregate of one parameter."""
        assert isinstance(state, KeptValues)
        return self.finish(state.count, {"values": state.stack(name)})


class TrimmedMean(OrderStatistic):
    """The mean without the k smallest and the k largest values of each coordinate (Yin et al. 2018).

    With g_(1) <= ... <= g_(E) the sorted values of a coordinate,

        trimmed(g) = 1/(E - 2k) * (g_(k+1) + ... + g_(E-k)),   k = max(1, floor(trim * E)) < E/2

    so that up to k wrong silos of E cannot move a coordinate beyond the values of the honest ones. One or two
    values are all kept.

    Args:
        trim: share of the values that is dropped at each end, above 0 and below 0.5.

    >>> rule = TrimmedMean(trim=0.2)
    >>> state = rule.zero({"w": torch.zeros(1)})
    >>> for value in (1.0, 2.0, 3.0, 4.0, -1000.0):
    ...     _ = rule.accumulate(state, {"w": torch.tensor([value])})
    >>> rule.finalize(state).value["w"]
    tensor([2.])
    """

    @checks_options
    def __init__(self, trim: Annotated[float, Field(gt=0, lt=0.5)] = 0.2) -> None:
        self.trim = trim

    def dropped(self, count: int) -> int:
        """Return k."""
        return min(max(1, math.floor(self.trim * count + _ROUNDING)), (count - 1) // 2)


class Median(OrderStatistic):
    """The median of each coordinate; for an even number of values, the mean of the middle two.

    >>> rule = Median()
    >>> state = rule.zero({"w": torch.zeros(1)})
    >>> for value in (1.0, 2.0, 4.0, -1000.0):
    ...     _ = rule.accumulate(state, {"w": torch.tensor([value])})
    >>> rule.finalize(state).value["w"]
    tensor([1.5000])
    """

    def dropped(self, count: int) -> int:
        """Return how many values are below the middle one or two."""
        return (count - 1) // 2
