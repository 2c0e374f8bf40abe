"""Charts of an HTML report as SVG, in the page's colours and fonts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.ticker import MaxNLocator
from scipy.stats import binomtest

from fedilc.evaluation.intervals import Interval
from fedilc.report.plots import common_rounds

WIDTH, HEIGHT = 380, 212
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 8, 36
_MAX_POINTS = 200


@dataclass(frozen=True)
class Line:
    """A line with its colour's number, and limits around it if it has some."""

    label: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None

    @property
    def points(self) -> list[tuple[float, float]]:
        """Return the points of the line."""
        return list(zip(self.x, self.y, strict=True))


@dataclass(frozen=True)
class Chart:
    """A picture: lines, dots, what they say to those who cannot see them, both axes' ends, and its size."""

    title: str
    alt: str
    x_label: str
    lines: Sequence[Line]
    x: tuple[float, float]
    y: tuple[float, float]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    dots: Sequence[Line] = ()

    @property
    def right(self) -> int:
        """Return where the horizontal axis ends."""
        return self.width - _RIGHT

    @property
    def bottom(self) -> int:
        """Return where the vertical axis begins."""
        return self.height - _BOTTOM

    @property
    def x_ticks(self) -> list[float]:
        """Return round numbers along the horizontal axis; rounds are whole."""
        return _ticks(self.x, whole=self.x_label == "round")

    @property
    def y_ticks(self) -> list[float]:
        """Return round numbers along the vertical axis."""
        return _ticks(self.y)

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return the coordinates of a point in the picture."""
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        right, down = self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - _TOP)
        return round(right, 1), round(down, 1)

    def path(self, x: Iterable[float], y: Iterable[float]) -> str:
        """Return points as the path of an SVG."""
        places = (self.place(*point) for point in zip(x, y, strict=True))
        return "M" + "L".join(f"{right},{down}" for right, down in places)

    def band(self, line: Line) -> str:
        """Return the outline of the area between a line's limits: along the upper and back on the lower."""
        high, low = line.high or (), line.low or ()
        return self.path([*line.x, *reversed(line.x)], [*high, *reversed(low)]) + "Z"


def curves(title: str, x_label: str, lines: Sequence[Line], among: Sequence[Line] = ()) -> Chart:
    """Return lines over rounds, with bands if they have limits; the axes have room for `among` too."""
    lines = [_thinned(line) for line in lines]
    held = [*lines, *map(_thinned, among)]
    values = [value for line in held for part in (line.y, line.low, line.high) for value in part or ()]
    x = _range([x for line in held for x in line.x])
    ends = ", ".join(f"{line.label} {line.y[-1]:.3f}" for line in lines)
    alt = f"{title} by {x_label}, from {lines[0].x[0]:g} to {x[1]:g}. At the end: {ends}."
    return Chart(title, alt, x_label, lines, x, _padded(values))


def reliability(title: str, lines: Sequence[Line], axes: tuple[str, str], ends: tuple[float, float]) -> Chart:
    """Return what was observed against what was predicted; `axes` names prediction and observation."""
    apart = ", ".join(f"{line.label} {_distance(line):.2f}" for line in lines)
    alt = f"{title}: {axes[1]} against {axes[0]}. Mean distance from the diagonal: {apart}."
    return Chart(title, alt, axes[0], lines, ends, ends, 280, 270)


class Scale(NamedTuple):
    """The ends between which intervals are drawn."""

    low: float
    high: float

    def share(self, value: float) -> float:
        """Return where a value lies between the ends, in per cent."""
        return 100 * min(1.0, max(0.0, (value - self.low) / ((self.high - self.low) or 1)))


@dataclass(frozen=True)
class Panel:
    """A table of scores with their intervals, drawn and in numbers.

    Attributes:
        title: the table's caption.
        rows: a label, a colour's number and an interval each.
        scale: the ends between which they are drawn.
        first: what the labels are.
        form: of the numbers.
        kind: what the intervals are.
        line: where a dashed line is drawn: at 0, or at chance; only if it is between the ends.
    """

    title: str
    rows: Sequence[tuple[str, int, Interval]]
    scale: Scale
    first: str = "method"
    form: str = "%.3f"
    kind: str = "95 %"
    line: float = 0.0

    @property
    def cautions(self) -> bool:
        """Return whether a score is to be read with caution."""
        return any(one.caution is not None for _, _, one in self.rows)


@dataclass(frozen=True)
class Heat:
    """Values from 0 to 1: per layer its name, the means of neighbouring rounds, and the last value."""

    title: str
    alt: str
    rounds: Sequence[int]
    rows: Sequence[tuple[str, Sequence[float], float]]
    width: int
    height: int


def agreement_charts(by_method: Mapping[str, Mapping[Any, Mapping[str, float]]]) -> list[Heat]:
    """Return how far the silos' signs agree by layer and round, a chart per method."""
    charts = []
    for method, by_round in by_method.items():
        keys = sorted(by_round, key=int)
        rounds = list(map(int, keys))
        layers = {layer: [by_round[key].get(layer, 0.0) for key in keys] for layer in by_round[keys[0]]}
        places = np.linspace(0, len(rounds), min(len(rounds), 50) + 1).astype(int)
        rows = [
            (name, [float(np.mean(values[start:end])) for start, end in pairwise(places)], values[-1])
            for name, values in layers.items()
        ]
        said = ", ".join(f"{name} {values[0]:.2f} to {values[-1]:.2f}" for name, values in layers.items())
        alt = f"{method}, from round {rounds[0]} to {rounds[-1]}: {said}."
        charts.append(Heat(method, alt, rounds, rows, WIDTH, _TOP + 18 * len(rows) + 20))
    return charts


def band(label: str, colour: int, series: Sequence[Mapping[int, float | None]]) -> Line | None:
    """Return the mean of several curves over the rounds that all have, and their range; None without any."""
    rounds, values = common_rounds(series)
    if not rounds:
        return None
    limits = [values.min(0).tolist(), values.max(0).tolist()] if len(values) > 1 else []
    return Line(label, colour, rounds, values.mean(0).tolist(), *limits)


def common_limits(found: Iterable[Interval]) -> Scale:
    """Return ends that hold all these intervals, as round numbers."""
    values = [end for one in found for end in (one.value, one.low, one.high) if end is not None]
    low, high = _range(values or [0.0, 1.0])
    step = 10 ** math.floor(math.log10(high - low)) / 2
    return Scale(math.floor(low / step) * step, math.ceil(high / step) * step)


def _ticks(ends: tuple[float, float], whole: bool = False) -> list[float]:
    margin = 1e-9 * (ends[1] - ends[0])
    found = MaxNLocator(5, integer=whole).tick_values(*ends)
    return [float(tick) + 0.0 for tick in found if ends[0] - margin <= tick <= ends[1] + margin]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = _range(values)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _thinned(line: Line) -> Line:
    """Return the line with finite points alone, and no more than can be seen."""
    parts = [part for part in (line.x, line.y, line.low, line.high) if part is not None]
    points = [point for point in zip(*parts, strict=True) if all(map(math.isfinite, point))]
    step = -(-len(points) // _MAX_POINTS) or 1
    kept = points[::-1][::step][::-1]
    columns: list[list[float]] = [list(column) for column in zip(*kept, strict=True)] or [[] for _ in parts]
    return Line(line.label, line.colour, *columns)


def _distance(line: Line) -> float:
    return float(np.mean(np.abs(np.subtract(line.x, line.y))))


def wilson_limits(share: float, examples: int) -> tuple[float, float]:
    """Return Wilson's 95 % limits of a share of examples; a mean over seeds lies between them too."""
    found = binomtest(round(share * examples), examples).proportion_ci(method="wilson")
    return min(share, float(found.low)), max(share, float(found.high))
