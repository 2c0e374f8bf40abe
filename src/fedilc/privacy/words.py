"""The whole numbers of a step's reply, as words that are added modulo 2^64 or 2^32, and back from their sums.

- values: multiples of `sum_unit`, one word each; those that are multiplied by a silo's number of examples are
  split into a lower part of 32 bits and the rest, as all numbers are (loss, distance, metrics).
- geometric means: first counts of both signs, in one word of 32 bits; then sums of logarithms, one word for
  each side that has at least `min_side` members. Other sides would reveal single silos and are not sent.
- metrics: first how many silos have each; then the sums of those that at least three have.

No sum of at most 100 silos leaves its part of a word, so that sums modulo the word size are the sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedilc.aggregation.exact_sum import DIGIT, ExactSum
from fedilc.aggregation.geometric import WeightedGeometricMean
from fedilc.aggregation.packed_sums import Sums
from fedilc.aggregation.signed_logs import SignedLogs
from fedilc.errors import ConfigError, ProtocolError
from fedilc.federation.program import (
    MATCHED,
    PENALTY_WEIGHT,
    SECURE_MIN_SIDE,
    STATE_ROUND,
    UPDATE,
    Program,
)
from fedilc.federation.protocol import Answer, Reply, Step, TotalReply
from fedilc.federation.rounding import NUMBER_UNIT, rounded_number

COUNTS, VALUES = "counts", "values"
_WHOLE = ("examples", "clipped")
_LOSS = "loss"
_BASE = 2.0**32
_MOST_LOG = {torch.float32: 150 << 36, torch.float64: 1100 << 46}  # of a value's logarithm, in its units
_IMPOSSIBLE = (
    "a total is larger than that of any answers, so that at least one silo sent words that are none; secure "
    "sums hide which one: let each owner look at its silo, and resume"
)


@dataclass(frozen=True)
class SumForm:
    """How the replies to a step become words.

    Args:
        program: the steps of the run.
        step: the step.
        silos: how many silos the run has.
    """

    program: Program
    step: Step
    silos: int

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the sums of the step: first counts of signs, or of silos that have a metric, if any."""
        return (COUNTS, VALUES) if self.sides else (VALUES,)

    def kind(self, part: str) -> str:
        """Return what a sum is of: both kinds of update steps add up the same gradients."""
        step = UPDATE if self.step.name == MATCHED else self.step.name
        return f"{step} {part}"

    @property
    def depends_on_silos(self) -> bool:
        """Return whether an answer depends on how many silos the step has, as the terms of a penalty do."""
        return bool(self.step.sends) or PENALTY_WEIGHT in self.step.sent_numbers

    @cached_property
    def sides(self) -> int:
        """Return how many sides of coordinates the geometric means of the step have, and metrics."""
        return self._signs + len(self.step.metrics)

    def words(self, part: str, kept: NDArray[np.bool_] | None) -> int:
        """Return how many words a part has, if these sides are kept."""
        if part == COUNTS:
            return self._signs // 2 + len(self.step.metrics)
        found = 0 if kept is None else int(kept[: self._signs].sum()) + 3 * int(kept[self._signs :].sum())
        for answer, _, like in self._groups:
            terms = answer.aggregator.terms(torch.empty(0, dtype=like.dtype))
            found += len(terms) * like.numel() * (2 if self._is_weighted(answer) else 1)
        return found + 2 * len(self._summed)

    def counts(self, reply: Reply) -> NDArray[np.uint32]:
        """Return the counts of both signs in each coordinate: positives in the lower half of a word.

        For metrics it is 1 if the silo has the metric.
        """
        found = [
            self._logs(reply, group, name, answer)[0].numpy().astype(np.uint32)
            for group, name, _, answer in self._signed
        ]
        metrics = np.array(
            [_metric(reply, name) is not None for name in sorted(self.step.metrics)], np.uint32
        )
        return np.concatenate([*(counts[0] + (counts[1] << np.uint32(16)) for counts in found), metrics])

    def kept(self, counts: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Return which sides have enough members to be added up, positive sides first in each tensor.

        After them follows which metrics enough silos have.
        """
        if len(counts) and max(int((counts & 0xFFFF).max()), int((counts >> 16).max())) > self.silos:
            raise ProtocolError(_IMPOSSIBLE)
        found, start = [], 0
        for _, _, like, answer in self._signed:
            part = counts[start : start + like.numel()]
            start += like.numel()
            least = _geometric(answer).min_side
            found += [(part & 0xFFFF) >= least, (part >> 16) >= least]
        return np.concatenate([*found, counts[start:] >= SECURE_MIN_SIDE])

    def values(self, reply: Reply, kept: NDArray[np.bool_]) -> NDArray[np.uint64]:
        """Return all else: values, sums of logarithms of the kept sides, numbers and metrics."""
        found: list[NDArray[Any]] = []
        factor = int(reply.numbers.get("examples") or 1)
        for group, name, answer, _ in self._tensors:
            terms = answer.aggregator.terms(reply.tensors[group][name].detach().cpu().unsqueeze(0))
            for term in terms.values():
                found += self._whole(term.flatten(), answer, factor, name)
        start = 0
        for group, name, like, answer in self._signed:
            _, logs = self._logs(reply, group, name, answer)
            taken = kept[start : start + 2 * like.numel()]
            found.append(logs.numpy().reshape(-1)[taken])
            start += 2 * like.numel()
        found.append(np.array(list(self._numbers(reply, factor, kept)), dtype=np.uint64))
        return np.concatenate(
            [part.astype(np.int64).view(np.uint64) if part.dtype != np.uint64 else part for part in found]
        )

    def total(
        self,
        silos: tuple[str, ...],
        like: Mapping[str, Mapping[str, Tensor]],
        words: NDArray[np.uint64],
        counts: NDArray[np.uint32] | None,
        kept: NDArray[np.bool_],
    ) -> TotalReply:
        """Return the sums over these silos from the totals of their words."""
        whole = torch.from_numpy(words.view(np.int64).copy())
        sums = {group: answer.aggregator.zero(like[group]) for group, answer in self.step.answers.items()}
        place = 0

        def take(size: int) -> Tensor:
            nonlocal place
            place += size
            return whole[place - size : place]

        for group, name, answer, one in self._tensors:
            for part in sums[group].sums[name].values():
                if isinstance(part, ExactSum):
                    weighted = self._is_weighted(answer)
                    most = DIGIT if weighted else int(self.program.options.limit / self._unit)
                    _add_whole(part, _possible(take(one.numel()), most * len(silos)), self._unit, 0)
                    if weighted:
                        _add_whole(part, take(one.numel()), self._unit, 1)
        seen = 0
        for group, name, one, _ in self._signed:
            size = one.numel()
            here = kept[2 * seen : 2 * (seen + size)]
            assert counts is not None
            members = torch.from_numpy(counts[seen : seen + size].astype(np.int64))
            logs = torch.zeros(2 * size, dtype=torch.int64)
            totals = take(int(here.sum()))
            logs[torch.from_numpy(here)] = _possible(totals, len(silos) * _MOST_LOG[one.dtype])
            logs = logs.view(2, size)
            (part,) = sums[group].sums[name].values()
            assert isinstance(part, SignedLogs)
            part.load(torch.stack([torch.stack([members & 0xFFFF, members >> 16]), logs & DIGIT, logs >> 32]))
            seen += size
        numbers = {name: _number(take(2)) * _unit_of(name) for name in self._summed}
        metrics: dict[str, tuple[float, int]] = {}
        for name in self._measured(kept):
            value = _number(take(2)) * _unit_of(name)
            metrics[name] = value, int(_possible(take(1), len(silos)))
        weight = numbers["examples"] if self._weighs_examples and "examples" in numbers else float(len(silos))
        self._count(sums, silos, weight)
        return TotalReply(silos, sums, numbers, weight, metrics)

    def _count(self, sums: Mapping[str, Sums], silos: tuple[str, ...], weight: float) -> None:
        for group, state in sums.items():
            state.counted(len(silos))
            if self._is_weighted(self.step.answers[group]):
                state.weighted = len(silos)
                state.weights.add(torch.tensor([weight], dtype=torch.float64))

    @property
    def _summed(self) -> list[str]:
        """Return the numbers that are added up; the round of a silo's state is no secret, and is not."""
        return sorted(self.step.numbers.keys() - {STATE_ROUND})

    @property
    def _unit(self) -> float:
        assert self.program.options.sum_unit is not None
        return self.program.options.sum_unit

    @property
    def _weighs_examples(self) -> bool:
        return self.program.algorithm.silo_weights == "examples"

    def _is_weighted(self, answer: Answer) -> bool:
        return answer.weighted and self._weighs_examples

    @property
    def _tensors(self) -> Iterator[tuple[str, str, Answer, Tensor]]:
        for group, answer in sorted(self.step.answers.items()):
            for name, like in sorted(answer.like.items()):
                yield group, name, answer, like

    @property
    def _groups(self) -> Iterator[tuple[Answer, str, Tensor]]:
        for _, name, answer, like in self._tensors:
            yield answer, name, like

    @cached_property
    def _signs(self) -> int:
        return sum(2 * like.numel() for _, _, like, _ in self._signed)

    @property
    def _signed(self) -> Iterator[tuple[str, str, Tensor, Answer]]:
        for group, name, answer, like in self._tensors:
            if answer.aggregator.by_sign:
                yield group, name, like, answer

    def _logs(self, reply: Reply, group: str, name: str, answer: Answer) -> tuple[Tensor, Tensor]:
        """Return one silo's counts and logarithms of both signs, as the geometric mean adds them."""
        value = {name: reply.tensors[group][name].detach().cpu()}
        state = answer.aggregator.accumulate(answer.aggregator.zero(value), value, f"silo {reply.silo!r}")
        (part,) = state.sums[name].values()
        assert isinstance(part, SignedLogs)
        counts, low, high = part.wide_words().view(3, 2, -1)
        return counts, (high << 32) + low

    def _whole(self, term: Tensor, answer: Answer, factor: int, name: str) -> Iterator[NDArray[np.int64]]:
        """Return values as numbers of units, times the silo's weight."""
        if not bool(term.isfinite().all()):
            raise ProtocolError(
                f"this silo's answer has a NaN or an infinity for {name!r}, and was not sent; check its "
                "data for extreme values, or lower the learning rate or the penalty"
            )
        if not self._is_weighted(answer):
            yield (term.double() / self._unit).long().numpy()
            return
        units = (term.double() * factor) / self._unit
        upper = (units / _BASE).floor()
        yield (units - upper * _BASE).long().numpy()
        yield upper.long().numpy()

    def _numbers(self, reply: Reply, factor: int, kept: NDArray[np.bool_]) -> Iterator[int]:
        for name in self._summed:
            number = reply.numbers[name]
            if number is None or not math.isfinite(number):
                raise ProtocolError(f"this silo's {name} is not finite, and nothing was sent; check its data")
            weight = factor if name == _LOSS and self._weighs_examples else 1
            yield from _halves(name, number, weight)
        for name in self._measured(kept):
            number = _metric(reply, name)
            yield from _halves(name, number or 0.0, 1)
            yield int(number is not None)

    def _measured(self, kept: NDArray[np.bool_]) -> list[str]:
        """Return the metrics that enough silos have."""
        names = sorted(self.step.metrics)
        return [name for name, taken in zip(names, kept[self._signs :], strict=True) if taken]


def _metric(reply: Reply, name: str) -> float | None:
    """Return a metric of a silo; None if it has none, such as an AUROC of one class."""
    number = reply.metrics.get(name)
    return float(number) if number is not None and math.isfinite(number) else None


def _geometric(answer: Answer) -> WeightedGeometricMean:
    assert isinstance(answer.aggregator, WeightedGeometricMean)
    return answer.aggregator


def _unit_of(name: str) -> float:
    return 1.0 if name in _WHOLE else NUMBER_UNIT


def _halves(name: str, number: float, weight: int) -> tuple[int, int]:
    """Return a number in its unit as a lower part of 32 bits and the rest, modulo 2^64."""
    units = int(number) if name in _WHOLE else int(rounded_number(number) / NUMBER_UNIT)
    units *= weight
    return units & DIGIT, (units >> 32) % (1 << 64)


def _number(halves: Tensor) -> float:
    return float(int(halves[0]) + (int(halves[1]) << 32))


def _possible(sums: Tensor, most: int) -> Tensor:
    """Return sums; raise if one is larger than the silos' answers together can be."""
    if sums.numel() and max(int(sums.max()), -int(sums.min())) > most:
        raise ProtocolError(_IMPOSSIBLE)
    return sums


def _add_whole(part: ExactSum, units: Tensor, unit: float, above: int) -> None:
    """Add whole numbers of units times 2^(32 `above`) to an exact sum, without rounding."""
    place = int(math.log2(unit)) + 1074
    word, shift = divmod(place, 32)
    lower = (units & DIGIT) << shift  # 63 bits
    upper = ((units >> 32) << shift) + (lower >> 32)  # 31 bits and a sign, shifted by at most 31
    rows = torch.stack([lower & DIGIT, upper & DIGIT, upper >> 32])
    part.add_digits(word + above, rows.to(torch.int32))


def require_summable(program: Program, silos: int) -> None:
    """Raise if a run needs each silo's own numbers, or its sums do not fit their words."""
    algorithm, inter, options = program.algorithm, program.inter, program.options
    rule = algorithm.silo_weights if isinstance(algorithm.silo_weights, str) else "one number per silo"
    why = "secure sums hide each silo's own numbers"
    if rule not in ("equal", "examples"):
        raise ConfigError(f"{why}, which silo_weights={rule!r} needs; use equal or examples")
    if inter.keeps_values or (inter.by_sign and not isinstance(inter, WeightedGeometricMean)):
        raise ConfigError(f"{why}, which inter={algorithm.name('inter')!r} needs; use mean or geometric")
    if isinstance(inter, WeightedGeometricMean):
        if inter.zeros == "authors":
            raise ConfigError(
                "secure sums send no side of fewer than min_side silos, so that zeros='authors', which adds "
                "zeros to a side, cannot be computed; use zeros='ignore'"
            )
        if inter.min_side < 3:
            raise ConfigError(
                f"min_side={inter.min_side} would reveal gradients of silos that are alone with their sign; "
                "secure sums need min_side=3 or more"
            )
    if options.sum_unit is None:
        raise ConfigError("secure sums need sum_unit, such as 2^-40")
    if options.limit / options.sum_unit * silos >= 2.0**62:
        raise ConfigError(
            f"sums of {silos} silos in units of {options.sum_unit:g} up to {options.limit:g} do not fit into "
            "63 bits; raise sum_unit or lower sum_limit"
        )
