"""Charts of what a study's methods predict at held-out sites: calibration, risks, and decision curves.

They are drawn from what study.json has of each site: curves at fixed risks, and counts between fixed risks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fedilc.algorithms.loss_registry import has_classes, task_of
from fedilc.report.html.charts import Chart, Line, reliability, wilson_limits
from fedilc.report.score_tables import Study, by_place, headline

_MAX_SITES = 24
_MAX_DOTS, _MIN_PER_DOT = 8, 15
_BAR_EDGES = [number / 20 for number in range(1, 20)]
_GREY = 7  # the colour of what is no method
Drawn = Mapping[str, Any]  # of one method at one place


@dataclass(frozen=True)
class Calibration:
    """A chart per held-out site.

    Attributes:
        charts: what was observed against what was predicted.
        axes: the names of prediction and observation.
        methods: those that are drawn, with their colours.
        more: how many sites are not drawn.
        smooth: whether the lines are smooth curves with bands, and dots are groups.
        missing: sites without a curve, and why.
    """

    charts: list[Chart]
    axes: tuple[str, str]
    methods: dict[str, int]
    more: int
    smooth: bool = False
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Histogram(Chart):
    """Shares of examples by predicted risk: events upwards, non-events downwards."""

    bars: Sequence[tuple[float, float, float, float]] = ()


@dataclass(frozen=True)
class PredictionCharts:
    """All charts of predictions; risks and decisions are of binary labels alone."""

    calibration: Calibration
    risks: list[Histogram]
    decisions: list[Chart]
    method: str


@dataclass(frozen=True)
class Counts:
    """Events and others between edges; an example counts once per seed (see `evaluation/risk_counts.py`)."""

    edges: Sequence[float]
    events: Sequence[int]
    others: Sequence[int]
    predicted: Sequence[float]
    seeds: int
    reach: Sequence[float] | None = None

    @property
    def total(self) -> int:
        """Return how many there are of both kinds."""
        return sum(self.events) + sum(self.others)

    def joined(self, kept: Sequence[float]) -> Counts:
        """Return the counts between those edges alone that are kept."""
        ends = [0, *(place + 1 for place, at in enumerate(self.edges) if at in kept), len(self.events)]
        events, others = (
            [sum(of[low:high]) for low, high in pairwise(ends)] for of in (self.events, self.others)
        )
        predicted = [sum(self.predicted[low:high]) for low, high in pairwise(ends)]
        return Counts([at for at in self.edges if at in kept], events, others, predicted, self.seeds)

    def share_below(self, share: float) -> float:
        """Return the first edge below which this share of all examples is; the last one if there is none."""
        below = 0
        for at, *both in zip(self.edges, self.events, self.others, strict=False):
            below += sum(both)
            if below >= share * self.total:
                return at
        return self.edges[-1] if self.edges else 1.0


def prediction_charts(study: Study) -> PredictionCharts | None:
    """Return the charts of the headline and the reference; None if study.json has no curves."""
    found = by_place(study, "drawn")
    if not any(found.values()):
        return None
    shown = _shown(study)
    sites = [place for place in found if place not in study["held_out"][_MAX_SITES:]]
    more = max(0, len(study["held_out"]) - _MAX_SITES)
    if task_of(study["loss"]) != "binary":
        return PredictionCharts(_grouped(study, sites, shown, found, more), [], [], headline(study))
    counts = {
        (site, method): Counts(**one["risks"], seeds=study["settings"]["seeds"])
        for site in sites
        for method, one in found[site].items()
        if "risks" in one
    }
    first = headline(study)
    return PredictionCharts(
        _smooth(study, sites, shown, found, counts, more),
        [_risks(site, counts[site, first]) for site in sites if (site, first) in counts],
        [_decisions(site, shown, counts) for site in sites if (site, first) in counts],
        first,
    )


def _shown(study: Study) -> dict[str, int]:
    """Return the method that answers the question and the reference, with their colours."""
    names = dict.fromkeys((headline(study), study["reference"]))
    return {name: study["methods"].index(name) for name in names}


def _smooth(
    study: Study,
    sites: Sequence[str],
    shown: Mapping[str, int],
    found: Mapping[str, Mapping[str, Drawn]],
    counts: Mapping[tuple[str, str], Counts],
    more: int,
) -> Calibration:
    """Return smooth curves with bands, and groups of examples as dots; none at a site with few events."""
    charts, missing = [], []
    axes, indices = ("predicted probability", "observed share"), by_place(study, "calibration")
    for site in sites:
        of_site = {method: indices[site][method]["ici"] for method in shown if method in indices[site]}
        if not any("curve" in one for one in found[site].values()):
            reason = next((one["reason"] for one in of_site.values() if one["reason"]), "no finite fit")
            missing.append(f"{site} ({reason})")
            continue
        lines, groups, said = [], [], []
        for method, colour in shown.items():
            one = found[site].get(method, {})
            if "risks" in one:
                groups.append(dots(method, colour, counts[site, method]))
            if "curve" not in one:
                missing.append(f"{site}, {method} (no finite fit)")
                continue
            parts = (one["curve"][name] for name in ("predicted", "observed", "low", "high"))
            lines.append(Line(method, colour, *parts))
            said.append(f"{method} {of_site[method]['value']:.3f}")
        alt = (
            f"{site}: {axes[1]} against {axes[0]}. Integrated calibration index: {', '.join(said) or 'none'}."
        )
        charts.append(Chart(site, alt, axes[0], lines, (0.0, 1.0), (0.0, 1.0), 280, 270, dots=groups))
    return Calibration(charts, axes, dict(shown), more, smooth=True, missing=tuple(missing))


def dots(label: str, colour: int, found: Counts) -> Line:
    """Return the share of events in groups of neighbouring risks with about equally many examples."""
    enough = max(_MIN_PER_DOT * found.seeds, found.total / _MAX_DOTS)
    groups: list[tuple[int, int, float]] = []
    rest = (0, 0, 0.0)
    for events, others, predicted in zip(found.events, found.others, found.predicted, strict=True):
        rest = (rest[0] + events, rest[1] + others, rest[2] + predicted)
        if rest[0] + rest[1] >= enough:
            groups.append(rest)
            rest = (0, 0, 0.0)
    if rest[0] + rest[1]:
        last = groups.pop() if groups else (0, 0, 0.0)
        groups.append((last[0] + rest[0], last[1] + rest[1], last[2] + rest[2]))
    sizes = [events + others for events, others, _ in groups]
    shares = [events / size for (events, _, _), size in zip(groups, sizes, strict=True)]
    limits = [
        wilson_limits(share, max(1, round(size / found.seeds)))
        for share, size in zip(shares, sizes, strict=True)
    ]
    means = [predicted / size for (_, _, predicted), size in zip(groups, sizes, strict=True)]
    return Line(label, colour, means, shares, [low for low, _ in limits], [high for _, high in limits])


def _risks(site: str, found: Counts) -> Histogram:
    """Return the distribution of the predicted risks of events and of non-events."""
    joined = found.joined(_BAR_EDGES)
    edges = [0.0, *joined.edges, 1.0]
    widths = [(high - low) / 0.05 for low, high in pairwise(edges)]
    up, down = (
        [count / joined.total / width for count, width in zip(of, widths, strict=True)]
        for of in (joined.events, joined.others)
    )
    alt = f"{site}: predicted risks, {', '.join(_medians(found))}."
    bars = [(*ends, high, low) for ends, high, low in zip(pairwise(edges), up, down, strict=True)]
    top, bottom = max(*up, 0.01), max(*down, 0.01)
    return Histogram(
        site, alt, "predicted risk", [], (0.0, 1.0), (-1.05 * bottom, 1.05 * top), 280, 212, bars=bars
    )


def _medians(found: Counts) -> Iterator[str]:
    """Yield between which risks the median of the events is, and that of the others."""
    edges = [0.0, *found.edges, 1.0]
    for name, of in (("events", found.events), ("non-events", found.others)):
        below = 0
        for (low, high), count in zip(pairwise(edges), of, strict=True):
            below += count
            if 2 * below >= sum(of) > 0:
                yield f"{name} median {low:g} to {high:g}"
                break


def _decisions(site: str, shown: Mapping[str, int], counts: Mapping[tuple[str, str], Counts]) -> Chart:
    """Return net benefit against the threshold: the methods, treating everybody, and treating nobody."""
    of = {method: counts[site, method] for method in shown if (site, method) in counts}
    last = min(0.99, max(0.1, *(one.share_below(0.99) for one in of.values())))
    benefits = {method: _benefits(one, last) for method, one in of.items()}
    first = next(iter(of.values()))
    share = sum(first.events) / first.total
    edges = sorted({at for found in benefits.values() for at in found})
    everyone = {at: share - (1 - share) * at / (1 - at) for at in edges}
    values = [value for found in benefits.values() for value, _, _ in found.values()]
    highest = max([0.01, *list(everyone.values())[:1], *values])
    lowest = -0.15 * highest
    lines = []
    for method, found in benefits.items():
        at, columns = list(found), list(zip(*found.values(), strict=True)) or [(), (), ()]
        value, low, high = ([max(one, lowest) for one in column] for column in columns)
        limits = (low, high) if of[method].reach is not None else (None, None)
        lines.append(Line(method, shown[method], at, value, *limits))
    kept = [at for at, value in everyone.items() if value >= lowest]
    lines.append(Line("treat all", _GREY, kept, [everyone[at] for at in kept]))
    alt = f"{site}: net benefit against the threshold."
    if edges:
        middle = edges[len(edges) // 2]
        said = [f"{method} {found[middle][0]:.3f}" for method, found in benefits.items() if middle in found]
        alt += f" At {middle:.2f}: {', '.join(said)}, treat all {everyone[middle]:.3f}, treat none 0."
    top = max([highest, *(end for line in lines for end in line.high or ())])
    return Chart(site, alt, "threshold", lines, (0.0, last), (lowest, 1.02 * top))


def _benefits(found: Counts, last: float) -> dict[float, tuple[float, float, float]]:
    """Return net benefit with its limits by threshold, up to a last one."""
    benefits = {}
    true, false = sum(found.events), sum(found.others)
    for place, at in enumerate(found.edges):
        true, false = true - found.events[place], false - found.others[place]
        value = (true - false * at / (1 - at)) / found.total
        reach = 0.0 if found.reach is None else found.reach[place]
        if at <= last:
            benefits[at] = value, value - reach, value + reach
    return benefits


def _grouped(
    study: Study,
    sites: Sequence[str],
    shown: Mapping[str, int],
    found: Mapping[str, Mapping[str, Drawn]],
    more: int,
) -> Calibration:
    """Return the groups of examples with several classes or quantities that were predicted alike."""
    loss = study["loss"]
    axes = {"multiclass": ("confidence", "share of correct predictions")}.get(
        task_of(loss), ("predicted value", "observed mean")
    )
    lines = {
        site: [
            line
            for method, colour in shown.items()
            if (line := _line(method, colour, found[site].get(method, {}), study["settings"]["seeds"]))
        ]
        for site in sites
    }
    every = [value for of in lines.values() for line in of for value in (*line.x, *line.y)]
    ends = (0.0, 1.0) if has_classes(loss) or not every else (min(every), max(every))
    charts = [reliability(site, of, axes, ends) for site, of in lines.items() if of]
    missing = tuple(site for site, of in lines.items() if not of)
    return Calibration(charts, axes, dict(shown), more, missing=missing)


def _line(label: str, colour: int, found: Drawn, seeds: int) -> Line | None:
    if "risks" in found:
        return dots(label, colour, Counts(**found["risks"], seeds=seeds))
    groups = found.get("groups")
    if not groups:
        return None
    x, y, low, high = ([one[name] for one in groups] for name in ("predicted", "observed", "low", "high"))
    return Line(label, colour, x, y, low, high)
