"""Pictures of a campaign: curves with a band over seeds, comparisons with the paper, heat maps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fedilc.errors import ConfigError
from fedilc.evaluation import CRITERIA
from fedilc.evaluation.selection import Record
from fedilc.evaluation.summary import DOMAIN_ACCURACY, Campaign, spread
from fedilc.report.paper import (
    PaperNumber,
    in_paper_order,
    on_the_papers_data,
    paper_benchmark,
    paper_numbers,
)
from fedilc.report.plots import PANELS
from fedilc.report.style import STYLE, add_title, colour_of, line_of, save

_CHOICES = {
    "oracle": "oracle: lowest OOD loss,\nwhich nobody can know",
    "validation": "lowest validation loss",
    "last": "last round",
}
_BARS = {"test_loss": "OOD test loss", "test_accuracy": "OOD test accuracy"}


def campaign_pictures(folder: Path, campaign: Campaign) -> list[Path]:
    """Draw every picture that the campaign has numbers for; where each one is."""
    paths = []
    if any(True for key in PANELS for _ in _curves(campaign, key)):
        paths.append(folder / "curves.png")
        curves_picture(paths[-1], campaign)
    for metric, name in (("test_loss", "ood-loss.png"), ("test_accuracy", "ood-accuracy.png")):
        if any(campaign.values(algorithm, "oracle", metric) for algorithm in campaign.algorithms):
            paths.append(folder / name)
            bars_picture(paths[-1], campaign, metric)
    if campaign.domains:
        paths.append(folder / "sub-environments.png")
        domains_picture(paths[-1], campaign)
    return paths


def curves_picture(path: Path, campaign: Campaign) -> None:
    """Train, validation and OOD loss of each algorithm: mean over seeds, and from least to most.

    A round is drawn where every seed of its algorithm has measured it.
    """
    curves = {key: list(_curves(campaign, key)) for key in PANELS}
    curves = {key: found for key, found in curves.items() if found}
    if not curves:
        raise ConfigError(f"the campaign {campaign.name} has no losses to draw; let it run some rounds")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.7 * len(curves), 4.9), layout="constrained")
        panels = figure.subplots(1, len(curves), squeeze=False)[0]
        for axes, (key, found) in zip(panels, curves.items(), strict=True):
            for name, rounds, values in found:
                colour, marker = colour_of(name), "o" if len(rounds) < 2 else None
                axes.plot(
                    rounds,
                    values.mean(0),
                    label=name,
                    color=colour,
                    linewidth=1.6,
                    linestyle=line_of(name),
                    marker=marker,
                )
                axes.fill_between(rounds, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
            axes.set(title=PANELS[key], xlabel="round", ylabel="cross-entropy")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.margins(x=0.01)
        band = "; band: least to most over seeds" if _several_seeds(campaign) else ""
        add_title(figure, f"{campaign.heading}: losses", campaign.subtitle + band)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
        save(figure, path)


def bars_picture(path: Path, campaign: Campaign, metric: str = "test_loss") -> None:
    """One metric of every algorithm under each criterion; the paper's numbers in the oracle's panel.

    Where the axis is cut, so that differences of a few per cent show, it says so.
    """
    names = in_paper_order(campaign.algorithms)
    means = {
        criterion: {
            name: spread(list(values.values()))
            for name in names
            if (values := campaign.values(name, criterion, metric))
        }
        for criterion in CRITERIA
    }
    means = {criterion: found for criterion, found in means.items() if found}
    if not means:
        raise ConfigError(f"the campaign {campaign.name} has no {metric} to draw; give it a test set")
    paper = paper_numbers(paper_benchmark(campaign.name), metric) if on_the_papers_data(campaign.name) else {}
    with mpl.rc_context(STYLE | {"axes.grid.axis": "x"}):
        figure = Figure(figsize=(1.8 + 3.4 * len(means), 2.3 + 0.4 * len(names)), layout="constrained")
        panels = figure.subplots(1, len(means), squeeze=False, sharex=True, sharey=True)[0]
        start = _cut(panels[0], [one for found in means.values() for one in found.values()], paper)
        for axes, (criterion, found) in zip(panels, means.items(), strict=True):
            _bars(axes, names, found, start)
            if criterion == "oracle":
                _paper_markers(axes, names, paper)
            cut = " (axis is cut)" if start else ""
            axes.set(title=_CHOICES[criterion], xlabel=f"{_BARS.get(metric, metric)}{cut}")
        panels[0].set_yticks(range(len(names)), names)
        panels[0].set_ylim(len(names) - 0.4, -0.6)
        note = campaign.subtitle
        note += "; bars: mean ± sample deviation over seeds" if _several_seeds(campaign) else ""
        note += "; diamonds: the paper's, over five seeds" if paper else ""
        add_title(figure, f"{campaign.heading}: {_BARS.get(metric, metric)}", note)
        save(figure, path)


def domains_picture(path: Path, campaign: Campaign, criterion: str = "oracle") -> None:
    """The accuracy in each sub-environment by algorithm, the best of each row in bold."""
    names = in_paper_order(campaign.algorithms)
    means = np.full((len(campaign.domains), len(names)), np.nan)
    for row, metric in enumerate(campaign.domains):
        for column, name in enumerate(names):
            values = campaign.values(name, criterion, metric)
            if values:
                means[row, column] = spread(list(values.values()))[0]
    if not np.isfinite(means).any():
        raise ConfigError(f"the campaign {campaign.name} has no sub-environments to draw under {criterion!r}")
    labels = [metric.removeprefix(DOMAIN_ACCURACY) for metric in campaign.domains]
    by = _CHOICES[criterion].replace("\n", " ")
    note = f"{campaign.subtitle}; round chosen by {by}; mean over seeds; bold: best of its row"
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(2.6 + 0.95 * len(names), 2.3 + 0.36 * len(labels)), layout="constrained")
        texts = [["" if math.isnan(value) else f"{value:.3f}" for value in row] for row in means]
        best = [[text == max(row) for text in row] for row in texts]
        _heat_map(figure, means, texts, best, (names, labels), "validation accuracy")
        add_title(figure, f"{campaign.heading}: validation accuracy in each sub-environment", note)
        save(figure, path)


def inconsistency_picture(
    path: Path, title: str, names: Sequence[str], matrix: ArrayLike, *, note: str = ""
) -> None:
    """The inconsistency of each pair of silos as a heat map with its numbers, by a common power of ten."""
    values = np.asarray(matrix, float)
    if values.shape != (len(names), len(names)) or not len(names):
        raise ConfigError(
            f"the inconsistency of {len(names)} silos is a square table of that size, not {values.shape}"
        )
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    power = 0 if largest == 0 or 0.1 <= largest < 1000 else math.floor(math.log10(largest))
    shown = values / 10.0**power
    texts = [["" if math.isnan(value) else f"{value:.3g}" for value in row] for row in shown]
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        size = 2.6 + (0.62 if len(names) <= 10 else 0.46) * max(len(names), 3)
        figure = Figure(figsize=(size + 0.8, size), layout="constrained")
        label = "inconsistency" + (f" (× 1e{power})" if power else "")
        _heat_map(figure, shown, texts, None, (names, names), label)
        add_title(figure, title, note)
        save(figure, path)


def _curves(campaign: Campaign, key: str) -> Iterator[tuple[str, list[int], NDArray[np.float64]]]:
    """Each algorithm's rounds that all its seeds have measured, and the values, a row a seed."""
    for name in in_paper_order(campaign.algorithms):
        seeds = [_measured(history, key) for history in campaign.histories[name].values() if history]
        rounds = sorted(set.intersection(*(set(seed) for seed in seeds)))
        if rounds:
            yield name, rounds, np.array([[seed[number] for number in rounds] for seed in seeds])


def _several_seeds(campaign: Campaign) -> bool:
    return any(len(seeds) > 1 for seeds in campaign.histories.values())


def _measured(history: Sequence[Record], key: str) -> dict[int, float]:
    return {record["round"]: float(record[key]) for record in history if record.get(key) is not None}


def _cut(axes: Axes, spreads: Sequence[tuple[float, float]], paper: Mapping[str, PaperNumber]) -> float:
    """Where the axis begins: so that the shortest bar still has room for its number."""
    every = [*spreads, *((number.mean, number.std) for number in paper.values())]
    least = min(mean - std for mean, std in every)
    most = max(mean + std for mean, std in every)
    span = max(most - least, 0.02 * abs(most), 1e-6)
    start = max(0.0, least - 0.55 * span)
    axes.set_xlim(start, most + 0.08 * span)
    return start


def _bars(axes: Axes, names: Sequence[str], found: Mapping[str, tuple[float, float]], start: float) -> None:
    for row, name in enumerate(names):
        if name in found:
            mean, deviation = found[name]
            axes.barh(row, mean - start, left=start, height=0.68, color=colour_of(name))
            if deviation:
                axes.errorbar(mean, row, xerr=deviation, color="#333333", capsize=3, linewidth=1.2)
            axes.annotate(
                f"{mean:.3f}", (start, row), (4, 0), textcoords="offset points", va="center", color="white"
            )


def _paper_markers(axes: Axes, names: Sequence[str], paper: Mapping[str, PaperNumber]) -> None:
    for row, name in enumerate(names):
        if name in paper:
            number = paper[name]
            axes.errorbar(
                number.mean,
                row + 0.22,
                xerr=number.std,
                fmt="D",
                color="black",
                markerfacecolor="white",
                markersize=5,
                capsize=2,
                linewidth=0.9,
            )


def _heat_map(
    figure: Figure,
    values: NDArray[np.float64],
    texts: Sequence[Sequence[str]],
    bold: Sequence[Sequence[bool]] | None,
    labels: tuple[Sequence[str], Sequence[str]],
    meaning: str,
) -> None:
    """Numbers in coloured cells, light on dark and dark on light, with a scale at the side."""
    axes = figure.add_subplot()
    image = axes.imshow(values, cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(labels[0])), labels[0], rotation=35, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(labels[1])), labels[1])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    least, most = image.get_clim()
    middle = least + 0.6 * (most - least)
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            dark = values[row, column] > middle
            weight = "bold" if bold is not None and bold[row][column] else "normal"
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=8.5 if len(line) <= 10 else 7.5,
                color="white" if dark else "black",
                weight=weight,
            )
    figure.colorbar(image, ax=axes, label=meaning, shrink=0.9)
