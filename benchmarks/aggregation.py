"""The weighted geometric mean against the arithmetic mean and against the straightforward formula."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from benchmarks.timing import Row, at_least, at_most, medians
from fedilc import weighted_geometric_mean
from fedilc.aggregation import Aggregator, Mean, WeightedGeometricMean, _kernels

SIZES = {5: 3_000_000, 50: 3_000_000, 500: 1_000_000}
STACKED = {5: 5.0, 50: 2.5, 500: 2.5}
STREAMED = {5: 6.0, 50: 4.0}
EXACT = {5: 6.0, 50: 4.0}


def formula(stack: Tensor) -> Tensor:
    """The straightforward torch formula: sign, masks, log, exp."""
    total, logs = len(stack), (stack.abs() + 1e-10).log()
    sides = []
    for mask in (stack.sign() > 0, stack.sign() < 0):
        members = mask.sum(0)
        sides.append(members / total * torch.exp((logs * mask).sum(0) / members.clamp(min=1)))
    return sides[0] - sides[1]


def stream_mean(stack: Tensor) -> Tensor:
    """The arithmetic mean of replies that come one after another."""
    total = torch.zeros(stack.shape[1])
    for reply in stack:
        total.add_(reply)
    return total.div_(len(stack))


def stream_wide_mean(stack: Tensor) -> Tensor:
    """The arithmetic mean of replies that come one after another, added up in float64."""
    total = torch.zeros(stack.shape[1], dtype=torch.float64)
    for reply in stack:
        total.add_(reply)
    return total.div_(len(stack)).float()


def stream(stack: Tensor, aggregator: Aggregator) -> Tensor:
    """An aggregate of replies that come one after another."""
    state = aggregator.zero({"w": stack[0]})
    for reply in stack:
        aggregator.accumulate(state, {"w": reply})
    return aggregator.finalize(state).value["w"]


def without_numba(action: Callable[[], object]) -> object:
    """Do as in an environment without numba: plain torch in place of the compiled loops."""
    with mock.patch.object(_kernels, "installed", return_value=False):
        return action()


def compiled_rows(stack: Tensor) -> list[Row]:
    """What numba saves: it stays a dependency while plain torch takes over twice as long."""
    what = {
        "wgm": lambda: weighted_geometric_mean(stack),
        "wgm, streamed": lambda: stream(stack, WeightedGeometricMean()),
        "exact mean, streamed": lambda: stream(stack, Mean()),
    }
    plain = {f"plain {name}": partial(without_numba, action) for name, action in what.items()}
    seconds = medians({**what, **plain}, repeats=3)
    shape, found = f"{len(stack)} x {stack.shape[1]:,}", []
    for name in what:
        ours, theirs = seconds[f"plain {name}"], seconds[name]
        detail = f"{1e3 * ours:.1f} ms / {1e3 * theirs:.1f} ms"
        against = "the compiled loops"
        found.append(
            at_least("aggregation", f"without numba: {name}, {shape}", against, ours / theirs, 2, detail)
        )
    return found


def rows(quick: bool) -> list[Row]:
    """Stacked, streamed and against the formula, for each number of environments."""
    found = []
    for environments, size in SIZES.items():
        size = size // 10 if quick else size
        stack = torch.randn(environments, size, generator=torch.Generator().manual_seed(0))
        seconds = medians(
            {
                "mean": lambda stack=stack: stack.mean(0),
                "wgm": lambda stack=stack: weighted_geometric_mean(stack),
                "stream mean": lambda stack=stack: stream_mean(stack),
                "stream wgm": lambda stack=stack: stream(stack, WeightedGeometricMean()),
                "wide mean": lambda stack=stack: stream_wide_mean(stack),
                "exact mean": lambda stack=stack: stream(stack, Mean()),
            },
            repeats=9,
        )
        found += compiled_rows(stack) if environments == 5 else []
        seconds |= medians({"formula": lambda stack=stack: formula(stack)}, repeats=1)
        what, shape = f"wgm of {environments} x {size:,}", "{:.1f} ms / {:.1f} ms"
        pairs = [
            ("mean of the same", "wgm", "mean", STACKED),
            ("mean, streamed", "stream wgm", "stream mean", STREAMED),
            ("mean in float64, streamed", "exact mean", "wide mean", EXACT),
        ]
        for against, ours, theirs, goals in pairs:
            if environments in goals:
                ratio = seconds[ours] / seconds[theirs]
                detail = shape.format(1e3 * seconds[ours], 1e3 * seconds[theirs])
                name = f"{what}, streamed" if "stream" in ours else what
                name = name.replace("wgm", "exact mean") if ours == "exact mean" else name
                found.append(at_most("aggregation", name, against, ratio, goals[environments], detail))
        ratio = seconds["formula"] / seconds["wgm"]
        detail = shape.format(1e3 * seconds["formula"], 1e3 * seconds["wgm"])
        found.append(
            at_least("aggregation", f"torch formula, {environments} x {size:,}", what, ratio, 40, detail)
        )
    return found
