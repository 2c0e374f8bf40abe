"""The state of an aggregation: integers that add up to the same bits in any order, and how they travel.

`Sums` is the state, `add_up` adds those of several processes, `PackedSums` is what a sub-coordinator sends,
and `SumsForm` checks what was received.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedilc.aggregation.exact_sum import DIGIT, ExactSum
from fedilc.aggregation.signed_logs import NARROW, SignedLogs
from fedilc.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    from fedilc.aggregation.base import Aggregator


MOST_VALUES = (1 << 31) - 1
# The words (first, stop) that a sum of up to 2^31 numbers can need: word k begins at 2^(32 k - 1074). float32
# goes from 2^-149 = 2^(925 - 1074), in word 28, to 2^(128 + 31) = 2^(1233 - 1074), in word 38; float64 goes
# from 2^-1074 to 2^(1024 + 31) = 2^(2129 - 1074), in word 66.
_WORDS = {torch.float32: (28, 39), torch.float64: (0, 67)}
# The range of log2|v|.
_LOGS = {torch.float32: (-149, 128), torch.float64: (-1074, 1024)}
_CPU = torch.device("cpu")
_ROUNDING = 1e-6  # sums may exceed their bound by this share, from rounding of norms
_AT_ONCE = 1 << 20
_LEAST_NORM = 1e-150  # below it the squares that a norm is made of may vanish
_NARROW = (torch.float16, torch.bfloat16, torch.float32)
_COUNTS = {255: torch.uint8, (1 << 15) - 1: torch.int16, (1 << 31) - 1: torch.int32}


@dataclass
class Sums:
    """The number of values so far, and named exact sums for each parameter; for a mean, the sum of weights.

    Attributes:
        like: tensors of each parameter's shape and dtype, without storage.
        devices: the devices of the aggregates.
        sums: the sums of each parameter, by name.
        weights: the exact sum of the given weights; values without a weight count 1.
        weighted: how many values had a weight.
        count: how many values were added.
    """

    like: dict[str, Tensor]
    devices: dict[str, torch.device]
    sums: dict[str, dict[str, ExactSum | SignedLogs]]
    weights: ExactSum
    weighted: int = 0
    count: int = 0

    def counted(self, values: int, weight: float | None = None) -> None:
        """Count values, and their weight (each 1 if none is given)."""
        if self.count + values > MOST_VALUES:
            raise ConfigError(f"an aggregate takes at most {MOST_VALUES:,} values")
        self.count += values
        if weight is not None:
            self.weighted += values
            self.weights.add(torch.tensor([weight], dtype=torch.float64))

    def total_weight(self) -> float:
        """Return the sum of all weights, rounded once."""
        if not self.weighted:
            return float(self.count)
        total = self.weights
        if self.weighted < self.count:
            total = deepcopy(total)
            total.add(torch.tensor([float(self.count - self.weighted)], dtype=torch.float64))
        return float(total.total())

    def named_sums(self) -> Iterator[tuple[str, ExactSum | SignedLogs]]:
        """Yield every sum of a parameter, named "parameter/sum"."""
        for name, by_key in self.sums.items():
            for key, part in by_key.items():
                yield f"{name}/{key}", part


def add_up(
    states: Sequence[Sums], largest: Callable[[Tensor], None], total: Callable[[Tensor], None]
) -> None:
    """Give each of these states the sums of the same states in all processes, in place.

    `largest` and `total` are all-reduces of an int64 tensor, in place. The first one lets all processes agree
    on which words each sum has. No word exceeds 2^32 after `carry`, so that 2^30 processes can be added up.
    """
    parts = [part for state in states for part in (state.weights, *dict(state.named_sums()).values())]
    exact = [part for part in parts if isinstance(part, ExactSum)]
    for part in exact:
        part.carry()
    spans = torch.tensor([part.span for part in exact], dtype=torch.int64)
    largest(spans)
    for part, (lowest, stop) in zip(exact, spans.tolist(), strict=True):
        part.widen(-lowest, stop)
    counts = torch.tensor([(state.count, state.weighted) for state in states])
    here = [counts, *(part.words if isinstance(part, ExactSum) else part.wide_words() for part in parts)]
    device = max((words.device for words in here), key=lambda device: device.type != "cpu")
    together = torch.cat([words.flatten().to(device) for words in here])
    total(together)
    sums = together.split([words.numel() for words in here])
    everywhere = [found.view(words.shape).to(words.device) for words, found in zip(here, sums, strict=True)]
    for state, (count, weighted) in zip(states, everywhere[0].tolist(), strict=True):
        state.count, state.weighted = 0, weighted
        state.counted(count)
    for one, words in zip(parts, everywhere[1:], strict=True):
        one.load(words)


@dataclass(frozen=True)
class PackedSums:
    """Tensors by name, and for each sum of values the number of its lowest word."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    lowest: dict[str, int] = field(default_factory=dict)


def pack_sums(state: Sums, values: int) -> PackedSums:
    """Return the sums of a state, which has at most this many values."""
    packed = PackedSums()
    for place, part in state.named_sums():
        if isinstance(part, ExactSum):
            packed.lowest[place], packed.tensors[place] = part.digits()
        else:
            for (key, dtype), words in zip(_log_dtypes(part, values).items(), part.wide_words(), strict=True):
                packed.tensors[f"{place}/{key}"] = words.to(dtype)
    return packed


def add_packed(state: Sums, packed: PackedSums, values: int) -> None:
    """Add sums of at most `values` values to those of a state, in place; the caller counts them."""
    for place, part in state.named_sums():
        if isinstance(part, ExactSum):
            part.add_digits(packed.lowest[place], packed.tensors[place])
        else:
            counts, low, high = (packed.tensors[f"{place}/{key}"] for key in ("counts", "low", "high"))
            part.add_words(counts, low, high, values)


@dataclass(frozen=True)
class SumsForm:
    """The form that packed sums of answers like `like` must have: it follows from the step, not the sender.

    Args:
        aggregator: how the answers are aggregated.
        like: the parameters, as tensors without storage.
        weighted: whether answers are multiplied by weights, which makes them float64.
    """

    aggregator: Aggregator
    like: Mapping[str, Tensor]
    weighted: bool

    def tensors(self, values: int, rows: Mapping[str, int] | None = None) -> dict[str, Tensor]:
        """Return the tensors of sums of at most `values` values, without storage.

        `rows` are those of each sum of values, by name; None is the most that there can be.
        """
        found: dict[str, Tensor] = {}
        for place, part, dtype in self._empty_sums():
            size = part.shape.numel()
            if isinstance(part, ExactSum):
                least, stop = _WORDS[dtype]
                count = stop - least if rows is None else rows[place]
                found[place] = torch.empty(count, size, dtype=torch.int32, device="meta")
            else:
                for key, kind in _log_dtypes(part, values).items():
                    found[f"{place}/{key}"] = torch.empty(2, size, dtype=kind, device="meta")
        return found

    def rows(self, shapes: Mapping[str, object], lowest: Mapping[str, object]) -> dict[str, int]:
        """Return how many rows each sum has, by the shapes that a sender declares; raise if it cannot be."""
        found: dict[str, int] = {}
        for place, part, dtype in self._empty_sums():
            if isinstance(part, ExactSum):
                shape, first, (least, stop) = shapes.get(place), lowest.get(place), _WORDS[dtype]
                count = shape[0] if isinstance(shape, list) and len(shape) == 2 else None
                if type(count) is not int or type(first) is not int:
                    raise ProtocolError(f"its sum {place!r} is missing, or has no lowest word")
                if count < 0 or (count > 0 and not (least <= first and first + count <= stop)):
                    raise ProtocolError(
                        f"its sum {place!r} has the words {first} to {first + count - 1}, but a sum of "
                        f"{str(dtype).removeprefix('torch.')} may only use words {least} to {stop - 1}"
                    )
                found[place] = count
        return found

    def check(self, packed: PackedSums, norms: Sequence[float], weights: Sequence[float] = ()) -> None:
        """Raise if answers with these norms cannot have these sums; shapes and dtypes are already checked.

        A sum of answers is at most as long as the sum of their norms (triangle inequality), each clipped to
        `max_norm` and multiplied by its weight (1 without `weights`). For sums of logarithms: for k values of
        one sign, k times the square of their geometric mean is at most the sum of their squares, and all
        squares together are the squared norms.
        """
        lengths = [self._clipped(norm) for norm in norms]
        factors = weights or [1.0] * len(lengths)
        longest = sum(length * weight for length, weight in zip(lengths, factors, strict=True)) or _LEAST_NORM
        together = math.hypot(*lengths) or _LEAST_NORM
        squares, products = 0.0, 0.0
        for place, part, dtype in self._empty_sums():
            if isinstance(part, SignedLogs):
                _check_logs(place, packed.tensors, part.kind.fraction, dtype, lengths)
                products += _squared_means(place, packed.tensors, part.kind.fraction, together)
                continue
            total = ExactSum(part.shape, _CPU)
            total.add_digits(packed.lowest[place], packed.tensors[place])
            bound = self.aggregator.bounded_terms.get(place.rpartition("/")[2])
            if self._adds_values(place):
                squares += float((total.total() / longest).square().sum())
            elif bound is not None and bool((total.total().abs() > bound * len(norms)).any()):
                raise ProtocolError(f"its sums {place!r} are larger than those of {len(norms)} values")
        for found, limit in ((squares, longest), (products, together)):
            if not (found <= 1 + _ROUNDING or math.isinf(limit)):
                raise ProtocolError(
                    f"its sums are {math.sqrt(found):.3g} times as long as the norms of its silos' answers "
                    f"together allow{self._conditions()}"
                )

    def _clipped(self, norm: float) -> float:
        """Return how long an answer of this norm can be after clipping, with room for rounding."""
        most = self.aggregator.max_norm
        if norm > most:
            dtypes = {tensor.dtype for tensor in self.like.values()}
            size = sum(tensor.numel() for tensor in self.like.values())
            share = max(torch.finfo(dtype).eps for dtype in dtypes)
            step = max(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps for dtype in dtypes)
            # Each number is rounded twice, by a share of itself or, if subnormal, by a step.
            norm = most * (1 + 2 * share) + step * math.sqrt(size)
        return max(norm, _LEAST_NORM)

    def _conditions(self) -> str:
        """Return what limits the norms of answers, for an error."""
        clipped = "" if math.isinf(self.aggregator.max_norm) else f", clipped to {self.aggregator.max_norm:g}"
        return (", times the silos' weights" if self.weighted else "") + clipped

    def _adds_values(self, place: str) -> bool:
        """Return whether a sum adds the answers themselves, or their products with weights."""
        probe = torch.empty(0)
        return self.aggregator.terms(probe)[place.rpartition("/")[2]] is probe

    def _empty_sums(self) -> Iterator[tuple[str, ExactSum | SignedLogs, torch.dtype]]:
        """Yield each sum's name, an empty one like it, and the dtype of the numbers that it adds up."""
        empty = self.aggregator.zero(self.like)
        for name, by_key in empty.sums.items():
            terms = self.aggregator.terms(torch.empty(0, dtype=self.like[name].dtype))
            for key, part in by_key.items():
                added = terms[key].dtype if isinstance(part, ExactSum) else part.dtype
                wide = added not in _NARROW or (self.weighted and isinstance(part, ExactSum))
                yield f"{name}/{key}", part, torch.float64 if wide else torch.float32


def _check_logs(
    place: str, tensors: Mapping[str, Tensor], fraction: int, dtype: torch.dtype, norms: Sequence[float]
) -> None:
    """Raise if values of these norms cannot have such counts and sums of logarithms.

    No value exceeds the norm of its answer, so no logarithm exceeds that of the largest norm.
    """
    counts, low, high = (tensors[f"{place}/{key}"].long() for key in ("counts", "low", "high"))
    if bool((counts < 0).any()) or bool((counts.sum(0) > len(norms)).any()):
        raise ProtocolError(f"its counts of {place!r} are not those of {len(norms)} values")
    least, most = (bound << fraction - 32 for bound in _LOGS[dtype])
    largest = max([_LEAST_NORM, *norms])
    if largest < math.inf:
        most = min(most, math.floor(math.log2(largest) * 2 ** (fraction - 32)) + 1)
    wrong = (high < least * counts) | (high > most * counts) | ((counts == 0) & (low != 0))
    if bool(wrong.any()):
        raise ProtocolError(
            f"its sums of logarithms of {place!r} are outside the range that values of these norms can have"
        )


def _squared_means(place: str, tensors: Mapping[str, Tensor], fraction: int, unit: float) -> float:
    """Return the sum of k times the squared geometric mean of k values, over both signs and all coordinates.

    The sum is in units of `unit` squared.
    """
    shift, found = math.log2(unit) if unit < math.inf else 0.0, 0.0
    words = [tensors[f"{place}/{key}"].flatten().split(_AT_ONCE) for key in ("counts", "low", "high")]
    for counts, low, high in zip(*words, strict=True):
        logs = (high.double() * 2.0**32 + (low.long() & DIGIT)) * 2.0**-fraction
        members = counts.double()
        squares = torch.exp2(2 * (logs / members.clamp(min=1.0) - shift))
        found += float((members * squares).sum())
    return found


def _log_dtypes(part: SignedLogs, values: int) -> dict[str, torch.dtype]:
    """Return the dtypes of the counts and of both words of the logarithms of at most `values` values."""
    counts = next(dtype for most, dtype in _COUNTS.items() if values <= most)
    return {"counts": counts, "low": torch.int32, "high": torch.int32 if part.kind == NARROW else torch.int64}
