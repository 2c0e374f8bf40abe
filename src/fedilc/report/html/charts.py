"""Charts of an HTML report as SVG; colours and fonts are those of the page, in light and dark mode."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from fedilc.evaluation.intervals import NOT_ESTIMABLE, Interval
from fedilc.report.html.page import boxed, grid, note, text
from fedilc.report.run_plots import common_rounds

WIDTH, HEIGHT = 380, 212
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 8, 36
_MAX_POINTS = 200
_COLOURS = 8


@dataclass(frozen=True)
class Line:
    """A line with its colour's number, and limits around it if it has some."""

    label: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Limits:
    """The ends of both axes, and the size of the picture."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = WIDTH
    height: int = HEIGHT

    def place(self, x: float, y: float) -> str:
        """Return the coordinates of a point in the picture."""
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        left = _LEFT + across * (self.width - _LEFT - _RIGHT)
        return f"{left:.1f},{self.height - _BOTTOM - up * (self.height - _TOP - _BOTTOM):.1f}"


def legend(labels: Iterable[tuple[str, int]]) -> str:
    """Return the legend: the colour and the name of each line."""
    entries = "".join(
        f'<li class="m{colour % _COLOURS}"><svg viewBox="0 0 28 10" aria-hidden="true">'
        f'<path class="curve" d="M0,5H28"/></svg>{text(label)}</li>'
        for label, colour in labels
    )
    return f'<ul class="legend">{entries}</ul>'


def curves(title: str, x_label: str, lines: Sequence[Line], among: Sequence[Line] = ()) -> str:
    """Return lines over rounds, with bands if they have limits; the axes have room for `among` too."""
    lines = [_thinned(line) for line in lines]
    held = [*lines, *map(_thinned, among)]
    values = [value for line in held for part in (line.y, line.low, line.high) for value in part or ()]
    limits = Limits(_range([x for line in held for x in line.x]), _padded(values))
    drawn = []
    for line in lines:
        if line.low is not None and line.high is not None:
            edge = [*zip(line.x, line.high, strict=True), *reversed([*zip(line.x, line.low, strict=True)])]
            band = "L".join(limits.place(*point) for point in edge)
            drawn.append(f'<path class="band m{line.colour % _COLOURS}" d="M{band}Z"/>')
    for line in lines:
        points = [limits.place(*point) for point in zip(line.x, line.y, strict=True)]
        drawn.append(f'<path class="curve m{line.colour % _COLOURS}" d="M{"L".join(points)}"/>')
        if len(points) == 1:
            drawn.append(_dot(points[0], line.colour))
    ends = ", ".join(f"{line.label} {line.y[-1]:.3f}" for line in lines)
    alt = f"{title} by {x_label}, from {lines[0].x[0]:g} to {limits.x[1]:g}. At the end: {ends}."
    return _figure(title, alt, [_axes(x_label, limits), *drawn], limits.width, limits.height)


def reliability(title: str, lines: Sequence[Line], axes: tuple[str, str], ends: tuple[float, float]) -> str:
    """Return what was observed against what was predicted, with the diagonal on which they are equal."""
    limits = Limits(ends, ends, 280, 270)
    corners = [limits.place(end, end) for end in ends]
    drawn = [_axes(axes[0], limits), f'<path class="ideal" d="M{"L".join(corners)}"/>']
    for line in lines:
        kind = f"m{line.colour % _COLOURS}"
        for x, low, high in zip(line.x, line.low or (), line.high or (), strict=True):
            whisker = f"M{limits.place(x, low)}L{limits.place(x, high)}"
            drawn.append(f'<path class="whisker {kind}" d="{whisker}"/>')
        points = [limits.place(*point) for point in zip(line.x, line.y, strict=True)]
        drawn.append(f'<path class="curve {kind}" d="M{"L".join(points)}"/>')
        drawn += [_dot(point, line.colour) for point in points]
    apart = ", ".join(f"{line.label} {_distance(line):.2f}" for line in lines)
    alt = f"{title}: {axes[1]} against {axes[0]}. Mean distance from the diagonal: {apart}."
    return _figure(title, alt, drawn, limits.width, limits.height)


def intervals(
    title: str,
    rows: Sequence[tuple[str, int, Interval]],
    limits: tuple[float, float],
    first: str = "method",
    form: str = "{:.3f}",
    kind: str = "95 %",
) -> str:
    """Return a table of scores with their intervals, drawn and in numbers; `kind` says what they are."""
    body = "".join(
        f'<tr class="m{colour % _COLOURS}"><th scope="row">{text(label)}</th>'
        f'<td><span class="range" aria-hidden="true">{_marks(found, limits)}</span></td>'
        f"<td>{_in_numbers(found, form)}</td></tr>"
        for label, colour, found in rows
    )
    low, high = (f"{end:.3g}" for end in limits)
    head = (
        f'<thead><tr><th scope="col">{text(first)}</th><th scope="col"><span class="ends">'
        f"<span>{low}</span> <span>{high}</span></span></th>"
        f'<th scope="col">value [{text(kind)}]</th></tr></thead>'
    )
    return boxed(title, f"{head}<tbody>{body}</tbody>", "intervals")


def _marks(found: Interval, limits: tuple[float, float]) -> str:
    def share(value: float) -> float:
        return 100 * min(1.0, max(0.0, (value - limits[0]) / ((limits[1] - limits[0]) or 1)))

    marks = f'<u style="left:{share(0.0):.1f}%"></u>' if limits[0] < 0 < limits[1] else ""
    if found.low is not None and found.high is not None:
        low, high = share(found.low), share(found.high)
        marks += f'<i style="left:{low:.1f}%;width:{high - low:.1f}%"></i>'
    if found.value is not None:
        marks += f'<b style="left:{share(found.value):.1f}%"></b>'
    return marks


def _in_numbers(found: Interval, form: str) -> str:
    if found.value is None:
        return "-" if found.reason is None else f"{NOT_ESTIMABLE} <small>({text(found.reason)})</small>"
    shown = form.format(found.value)
    if found.low is not None and found.high is not None:
        shown += f" <small>[{form.format(found.low)}, {form.format(found.high)}]</small>"
    if found.caution is not None:
        shown += f" <small>(caution: {text(found.caution)})</small>"
    return shown


def _heat(title: str, x_label: str, rounds: Sequence[int], rows: Mapping[str, Sequence[float]]) -> str:
    """Return values from 0 to 1 by layer and round as shades of a colour."""
    label, value, row = 120, 34, 18
    height = _TOP + row * len(rows) + 20
    places = np.linspace(0, len(rounds), min(len(rounds), 50) + 1).astype(int)
    width = (WIDTH - label - value) / (len(places) - 1)
    drawn = []
    for number, (name, values) in enumerate(rows.items()):
        top = _TOP + row * number
        shown = name if len(name) <= 19 else f"{name[:9]}…{name[-9:]}"
        drawn.append(f'<text x="{label - 6}" y="{top + 12}" text-anchor="end">{text(shown)}</text>')
        for place, (start, end) in enumerate(pairwise(places)):
            mean = float(np.mean(values[start:end]))
            drawn.append(
                f'<rect class="cell" x="{label + place * width:.2f}" y="{top}" width="{width:.2f}" '
                f'height="{row - 2}" fill-opacity="{0.05 + 0.9 * mean:.2f}"/>'
            )
        drawn.append(f'<text class="value" x="{WIDTH - value + 6}" y="{top + 12}">{values[-1]:.2f}</text>')
    foot = f'y="{height - 6}"'
    drawn.append(f'<text x="{label}" {foot}>{text(x_label)} {rounds[0]}</text>')
    drawn.append(f'<text x="{WIDTH - value}" {foot} text-anchor="end">{rounds[-1]}</text>')
    drawn.append(f'<text x="{WIDTH - value + 6}" {foot}>last</text>')
    said = ", ".join(f"{name} {values[0]:.2f} to {values[-1]:.2f}" for name, values in rows.items())
    alt = f"{title}, from {x_label} {rounds[0]} to {rounds[-1]}: {said}."
    return _figure(title, alt, drawn, WIDTH, height)


def band(label: str, colour: int, series: Sequence[Mapping[int, float | None]]) -> Line | None:
    """Return the mean of several curves over the rounds that all have, and their range; None without any."""
    rounds, values = common_rounds(series)
    if not rounds:
        return None
    limits = [values.min(0).tolist(), values.max(0).tolist()] if len(values) > 1 else []
    return Line(label, colour, rounds, values.mean(0).tolist(), *limits)


def agreement_section(
    by_method: Mapping[str, Mapping[Any, Mapping[str, float]]],
) -> list[tuple[str, str]]:
    """Return the section on how far the silos' signs agree by layer and round; none without any method."""
    charts = []
    for method, by_round in by_method.items():
        rounds = sorted(by_round, key=int)
        rows = {layer: [by_round[r].get(layer, 0.0) for r in rounds] for layer in by_round[rounds[0]]}
        charts.append(_heat(method, "round", list(map(int, rounds)), rows))
    told = note(
        "How far the signs of the silos' gradients agree: the stronger the colour, the more (1: all alike). "
        "The number is that of the last round. Methods that only average do not measure it."
    )
    return [("Agreement by layer and round", told + grid(charts))] if charts else []


def common_limits(found: Iterable[Interval]) -> tuple[float, float]:
    """Return ends that hold all these intervals, as round numbers."""
    values = [end for one in found for end in (one.value, one.low, one.high) if end is not None]
    low, high = _range(values or [0.0, 1.0])
    step = 10 ** math.floor(math.log10(high - low)) / 2
    return math.floor(low / step) * step, math.ceil(high / step) * step


def _figure(title: str, alt: str, drawn: Sequence[str], width: int, height: int) -> str:
    return (
        f"<figure><figcaption>{text(title)}</figcaption>\n"
        f'<svg class="chart" style="--width:{width}px" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{text(alt)}">\n' + "\n".join(drawn) + "\n</svg></figure>"
    )


def _axes(x_label: str, limits: Limits) -> str:
    parts = []
    for tick in _ticks(limits.y):
        left, y = limits.place(limits.x[0], tick).split(",")
        parts.append(f'<path class="axis" d="M{left},{y}H{limits.width - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
    for tick in _ticks(limits.x, whole=x_label == "round"):
        x = limits.place(tick, limits.y[0]).split(",")[0]
        parts.append(
            f'<text x="{x}" y="{limits.height - _BOTTOM + 15}" text-anchor="middle">{tick:.4g}</text>'
        )
    middle = (_LEFT + limits.width - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{limits.height - 4}" text-anchor="middle">{text(x_label)}</text>')
    return "\n".join(parts)


def _ticks(ends: tuple[float, float], whole: bool = False) -> list[float]:
    margin = 1e-9 * (ends[1] - ends[0])
    found = MaxNLocator(5, integer=whole).tick_values(*ends)
    return [float(tick) + 0.0 for tick in found if ends[0] - margin <= tick <= ends[1] + margin]


def _dot(point: str, colour: int) -> str:
    x, y = point.split(",")
    return f'<circle class="point m{colour % _COLOURS}" cx="{x}" cy="{y}" r="3"/>'


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
