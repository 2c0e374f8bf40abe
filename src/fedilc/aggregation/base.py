"""What every aggregation is: sums that start at zero, accumulate, merge, and are finalized.

An aggregator is two small functions of its own: `terms`, what one value adds to each sum, and
`finish`, what the sums become. Everything else follows from addition: memory is O(parameters)
whatever the number of values, any split and order merges to the same result, and the sums can
travel through an all-reduce or a secure sum. A value of zero adds nothing to any sum; an
aggregator that needs the number of zeros derives it from the count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedilc.errors import ConfigError, NonFiniteError
from fedilc.numerics import is_finite

_STACK_BUDGET = 1 << 22


@dataclass
class Sums:
    """The state of an aggregation: how many values came, and named sums for each parameter.

    `like` has an empty tensor of each parameter's shape on no device. A part is made when it is first
    needed; an aggregator may hold a few replies back to add them all at once.
    """

    count: float
    like: dict[str, Tensor]
    devices: dict[str, torch.device]
    parts: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    held: list[tuple[str, dict[str, Tensor]]] = field(default_factory=list)


@dataclass(frozen=True)
class Aggregate:
    """The aggregated value, with measurements as {measurement: {parameter: number}}."""

    value: dict[str, Tensor]
    measurements: dict[str, dict[str, float]] = field(default_factory=dict)


def require_finite(values: Tensor, source: str, parameter: str) -> None:
    """Raise an error naming silo and parameter where `values` holds a NaN or an infinity."""
    if not is_finite(values):
        raise NonFiniteError(
            f"{source} sent a NaN or infinite value for {parameter!r}; check its data for extreme "
            "values, or lower the learning rate or the penalty"
        )


def require_share(agreement: float) -> None:
    """Raise where an agreement threshold is not a share."""
    if not 0.0 <= agreement <= 1.0:
        raise ConfigError(f"agreement={agreement} is not a share between 0 and 1")


def measured_signs(result: Tensor, agreement: float) -> dict[str, float]:
    """How far signs agree, and the share of coordinates that became 0."""
    zeros = result.numel() - int(torch.count_nonzero(result))
    return {"sign_agreement": agreement, "zero_share": zeros / max(1, result.numel())}


class Aggregator(ABC):
    """How many values of one coordinate become one."""

    @abstractmethod
    def terms(self, values: Tensor) -> dict[str, Tensor]:
        """What each element of `values` adds to each sum, elementwise, in the sums' dtype."""

    @abstractmethod
    def finish(self, count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Turn the sums of one parameter into its aggregate and the measurements of it."""

    def zero(self, like: Mapping[str, Tensor]) -> Sums:
        """The empty state for parameters of these names, shapes, dtypes and devices."""
        shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in like.items()}
        return Sums(0, shapes, {name: tensor.device for name, tensor in like.items()})

    def part(self, state: Sums, name: str) -> dict[str, Tensor]:
        """The sums of one parameter; zeros where nothing was added yet."""
        if name not in state.parts:
            like, device = state.like[name], state.devices[name]
            terms = self.terms(torch.empty(0, dtype=like.dtype, device=device))
            state.parts[name] = {
                key: torch.zeros(like.shape, dtype=term.dtype, device=device) for key, term in terms.items()
            }
        return state.parts[name]

    def settle(self, state: Sums) -> None:
        """Bring replies that are held back into the sums."""
        held, state.held = state.held, []
        for source, values in held:
            for name, value in values.items():
                self.add_checked(state, name, value.unsqueeze(0), source)

    def accumulate(
        self,
        state: Sums,
        values: Mapping[str, Tensor],
        source: str = "a value",
        weight: float | None = None,
    ) -> Sums:
        """Add one reply, in place; `source` is named if it holds a NaN or an infinity.

        Only a mean can give it a `weight`.
        """
        if weight is not None:
            raise ConfigError(f"{type(self).__name__} counts every value once, and takes no weights")
        for name, value in values.items():
            require_finite(value, source, name)
        for name, value in values.items():
            self.add_stack(state, name, value.unsqueeze(0))
        state.count += 1
        return state

    def merge(self, left: Sums, right: Sums) -> Sums:
        """The state of both sides' values, in a new object."""
        self.settle(left)
        self.settle(right)
        parts = {
            name: {key: tensor + self.part(right, name)[key] for key, tensor in self.part(left, name).items()}
            for name in left.like
        }
        return Sums(left.count + right.count, left.like, left.devices, parts)

    def finalize(self, state: Sums) -> Aggregate:
        """The aggregate in the dtype the values came in, with its measurements."""
        if state.count == 0:
            raise ValueError("nothing was accumulated: there is no aggregate of zero values")
        value: dict[str, Tensor] = {}
        measurements: dict[str, dict[str, float]] = {}
        for name, like in state.like.items():
            result, measured = self.finalize_one(state, name)
            value[name] = result.to(like.dtype)
            for key, number in measured.items():
                measurements.setdefault(key, {})[name] = number
        return Aggregate(value, measurements)

    def finalize_one(self, state: Sums, name: str) -> tuple[Tensor, dict[str, float]]:
        """The aggregate of one parameter, and the measurements of it."""
        self.settle(state)
        return self.finish(state.count, self.part(state, name))

    def add_stack(self, state: Sums, name: str, stack: Tensor) -> None:
        """Add values stacked along the first axis to one parameter; the caller counts them."""
        sums = self.part(state, name)
        rows = max(1, _STACK_BUDGET // max(1, stack[0].numel())) if len(stack) else 1
        for chunk in stack.split(rows):
            for key, term in self.terms(chunk).items():
                sums[key] += term.sum(0) if len(term) > 1 else term[0]

    def add_checked(self, state: Sums, name: str, stack: Tensor, source: str) -> None:
        """`add_stack`, with an error that names source and parameter where a value is not finite."""
        require_finite(stack, source, name)
        self.add_stack(state, name, stack)

    def add_outer(self, state: Sums, name: str, left: Tensor, right: Tensor) -> None:
        """Add the outer products left_i right_i^T, one for each row; the caller counts them."""
        rows = max(1, _STACK_BUDGET // (left.shape[1] * right.shape[1]))
        for d, a in zip(left.split(rows), right.split(rows), strict=True):
            self.add_stack(state, name, d.unsqueeze(2) * a.unsqueeze(1))

    def add_rows(self, state: Sums, name: str, index: Tensor, rows: Tensor) -> None:
        """Add values that are zero but for one row each, rows[i] at index[i]."""
        sums = self.part(state, name)
        for key, term in self.terms(rows).items():
            sums[key].index_add_(0, index, term)


@dataclass
class Accumulation:
    """An aggregator bound to its state: where a silo streams the gradients of its environments."""

    aggregator: Aggregator
    state: Sums
    source: str

    def stack(self, name: str, values: Tensor) -> None:
        """One value a row."""
        self.aggregator.add_checked(self.state, name, values, self.source)

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        """One outer product a row."""
        require_finite(left, self.source, name)
        require_finite(right, self.source, name)
        self.aggregator.add_outer(self.state, name, left, right)

    def rows(self, name: str, index: Tensor, rows: Tensor) -> None:
        """Values with a single non-zero row."""
        require_finite(rows, self.source, name)
        self.aggregator.add_rows(self.state, name, index, rows)

    def counted(self, values: int) -> None:
        """Say that this many values have been added to every parameter."""
        self.state.count += values
