"""The folder of a campaign: its tables, its pictures, and the numbers from which they are made again."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedilc.errors import ConfigError
from fedilc.evaluation import CRITERIA
from fedilc.evaluation.inconsistency import CURVATURES, Curvature, Scores, ScoresByCurvature
from fedilc.evaluation.significance import spread
from fedilc.paper.campaign import DOMAIN_ACCURACY, BySeed, Campaign, summarise, with_scores
from fedilc.paper.claims import (
    PaperNumber,
    in_paper_order,
    on_the_papers_data,
    paper_benchmark,
    paper_numbers,
)
from fedilc.paper.tables import campaign_tables
from fedilc.report.plots import PANELS, Curve, add_title, colour_of, draw_curves, line_of, save, styled_figure
from fedilc.report.tables import TableData, csv_lines, write_tables
from fedilc.storage.files import parse_json, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CHOICES = {
    "oracle": "oracle: lowest OOD loss,\nwhich nobody can know",
    "validation": "lowest validation loss",
    "last": "last round",
}
_BARS = {"test_loss": "OOD test loss", "test_accuracy": "OOD test accuracy"}
FACTS, HISTORIES, SUMMARY, SCORES = "campaign.json", "history.csv", "summary.json", "inconsistency-scores.csv"
_KEPT = ("name", "note", "synthetic", "fishr_reduction")
_HISTORY = (
    *("train_loss", "validation_loss", "validation_accuracy"),
    *("test_loss", "test_accuracy", "test_auroc", "test_auprc"),
)


def write_campaign(folder: Path, campaign: Campaign, scores: ScoresByCurvature) -> list[TableData]:
    """Write tables, pictures, and the numbers that they are made from into a folder; return the tables."""
    scored = with_scores(campaign, scores)
    tables = _draw(folder, scored, scores)
    write_atomically(folder / FACTS, _json({key: getattr(campaign, key) for key in _KEPT}))
    write_atomically(folder / SUMMARY, _json(summarise(scored)))
    write_atomically(folder / HISTORIES, history_csv(campaign).encode())
    if scores:
        write_atomically(folder / SCORES, scores_csv(scores).encode())
    return tables


def remake_campaign(folder: Path) -> list[TableData]:
    """Make tables and pictures again from a campaign's numbers, without its runs; return the tables.

    The numbers stay the same, except that `summary.json` gets the inconsistency scores of
    `inconsistency-scores.csv`.
    """
    campaign, scores = read_campaign(folder)
    tables = _draw(folder, campaign, scores)
    write_atomically(folder / SUMMARY, _json(summarise(campaign)))
    return tables


def read_campaign(folder: Path) -> tuple[Campaign, ScoresByCurvature]:
    """Return the campaign whose files are in `folder`, and its inconsistency scores if it has any."""
    try:
        facts = parse_json((folder / FACTS).read_text())
        summary = parse_json((folder / SUMMARY).read_text())
        histories = _histories((folder / HISTORIES).read_text())
        scores = _scores((folder / SCORES).read_text()) if (folder / SCORES).exists() else {}
        chosen = {name: _by_seed(criteria, sorted(histories[name])) for name, criteria in summary.items()}
        campaign = Campaign(**{key: facts[key] for key in _KEPT}, histories=histories, chosen=chosen)
    except OSError as error:
        raise ConfigError(
            f"{folder} is not the folder of a finished campaign: {error.filename} cannot be read "
            f"({error.strerror}); `fedilc reproduce` writes one"
        ) from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the files of the campaign in {folder} are damaged or do not belong together ({error}); restore "
            "them from a copy, or run the campaign again"
        ) from error
    return with_scores(campaign, scores), scores


def _draw(folder: Path, campaign: Campaign, scores: ScoresByCurvature) -> list[TableData]:
    tables = campaign_tables(campaign)
    for algorithm, found in scores.get("variance", {}).items():
        path = folder / "figures" / f"inconsistency-{algorithm}.png"
        title = f"{campaign.heading} · {algorithm}"
        fewer = len(found.by_seed) < len(campaign.histories[algorithm])
        note = campaign.subtitle + (f"; scores of {len(found.by_seed)} seeds only" if fewer else "")
        inconsistency_picture(path, title, found.silos, found.matrix(), note=note)
    write_tables(folder, tables)
    campaign_pictures(folder / "figures", campaign)
    return tables


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def scores_csv(scores: ScoresByCurvature) -> str:
    """Return the score of each pair of silos, per curvature, algorithm and seed, as CSV."""
    rows = (
        (curvature, algorithm, seed, one, other, pairs[one, other])
        for curvature, by_algorithm in scores.items()
        for algorithm, found in by_algorithm.items()
        for seed, pairs in found.by_seed.items()
        for one, other in combinations_with_replacement(found.silos, 2)
    )
    return csv_lines(("curvature", "algorithm", "seed", "silo", "other", "score"), rows)


def history_csv(campaign: Campaign) -> str:
    """Return every round of every run as CSV, with five significant digits and blanks for missing numbers.

    >>> print(history_csv(Campaign("demo", {"fedsgd": {0: [{"round": 1, "train_loss": 1 / 3}]}})))
    algorithm,seed,round,train_loss,validation_loss,validation_accuracy,test_loss,...
    fedsgd,0,1,0.33333,,,,,,
    """
    rows = (
        (algorithm, seed, record["round"], *(_five_digits(record.get(key)) for key in _HISTORY))
        for algorithm, seeds in campaign.histories.items()
        for seed, history in sorted(seeds.items())
        for record in history
    )
    return csv_lines(("algorithm", "seed", "round", *_HISTORY), rows)


def _five_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def _histories(text: str) -> dict[str, dict[int, list[dict[str, Any]]]]:
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        numbers = {key: float(row[key]) for key in _HISTORY if row[key]}
        seeds = found.setdefault(row["algorithm"], {})
        seeds.setdefault(int(row["seed"]), []).append({"round": int(row["round"]), **numbers})
    return found


def _by_seed(criteria: Mapping[str, Mapping[str, Any]], seeds: list[int]) -> Mapping[str, BySeed]:
    """Return the numbers by seed; a summary has the values of each metric in the order of the seeds."""
    found: dict[str, dict[int, dict[str, float]]] = {criterion: {} for criterion in criteria}
    for criterion, metrics in criteria.items():
        for metric, summary in metrics.items():
            for seed, value in zip(seeds, summary["seeds"], strict=True):
                if value is not None:
                    found[criterion].setdefault(seed, {})[metric] = value
    return found


def _scores(text: str) -> ScoresByCurvature:
    found: dict[Curvature, dict[str, dict[int, dict[tuple[str, str], float]]]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        if row["curvature"] not in CURVATURES:
            raise ValueError(f"the curvature {row['curvature']!r} is unknown")
        seeds = found.setdefault(cast(Curvature, row["curvature"]), {}).setdefault(row["algorithm"], {})
        pairs = seeds.setdefault(int(row["seed"]), {})
        pairs[row["silo"], row["other"]] = pairs[row["other"], row["silo"]] = float(row["score"])
    return {
        curvature: {name: Scores(by_seed) for name, by_seed in algorithms.items()}
        for curvature, algorithms in found.items()
    }


def campaign_pictures(folder: Path, campaign: Campaign) -> list[Path]:
    """Draw every picture that the campaign has numbers for, and return their paths."""
    paths = []
    runs = [history for seeds in campaign.histories.values() for history in seeds.values()]
    if any(record.get(key) is not None for history in runs for record in history for key in PANELS):
        paths.append(folder / "curves.png")
        curves_picture(paths[-1], campaign)
    for metric in _BARS:
        if any(campaign.values(algorithm, "oracle", metric) for algorithm in campaign.algorithms):
            paths.append(folder / f"{metric.replace('test_', 'ood-')}.png")
            bars_picture(paths[-1], campaign, metric)
    if any(
        campaign.values(name, "oracle", metric) for name in campaign.algorithms for metric in campaign.domains
    ):
        paths.append(folder / "sub-environments.png")
        domains_picture(paths[-1], campaign)
    return paths


def curves_picture(path: Path, campaign: Campaign) -> None:
    """Draw train, validation and OOD loss per algorithm: the mean over seeds, and the range over seeds."""
    curves = [
        Curve(name, list(filter(None, campaign.histories[name].values())), colour_of(name), line_of(name))
        for name in in_paper_order(campaign.algorithms)
    ]
    band = "; band: least to most over seeds" if _several_seeds(campaign) else ""
    draw_curves(path, f"{campaign.heading}: losses", campaign.subtitle + band, curves)


def bars_picture(path: Path, campaign: Campaign, metric: str = "test_loss") -> None:
    """Draw one metric of every algorithm, a panel per criterion; the oracle's has the paper's numbers too.

    If the axis is cut, so that differences of a few per cent are visible, its label says so.
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
    means = {criterion: spreads for criterion, spreads in means.items() if spreads}
    paper = paper_numbers(paper_benchmark(campaign.name), metric) if on_the_papers_data(campaign.name) else {}
    with styled_figure(1.8 + 3.4 * len(means), 2.3 + 0.4 * len(names), axes_grid_axis="x") as figure:
        panels = figure.subplots(1, len(means), squeeze=False, sharex=True, sharey=True)[0]
        start = _cut_axis(panels[0], [one for spreads in means.values() for one in spreads.values()], paper)
        for axes, (criterion, spreads) in zip(panels, means.items(), strict=True):
            _draw_bars(axes, names, spreads, start)
            if criterion == "oracle":
                _draw_paper(axes, names, paper)
            cut = " (axis is cut)" if start else ""
            axes.set(title=_CHOICES[criterion], xlabel=f"{_BARS[metric]}{cut}")
        panels[0].set_yticks(range(len(names)), names)
        panels[0].set_ylim(len(names) - 0.4, -0.6)
        note = campaign.subtitle
        note += "; bars: mean ± sample deviation over seeds" if _several_seeds(campaign) else ""
        note += "; diamonds: the paper's, over five seeds" if paper else ""
        add_title(figure, f"{campaign.heading}: {_BARS[metric]}", note)
        save(figure, path)


def domains_picture(path: Path, campaign: Campaign) -> None:
    """Draw the accuracy per sub-environment and algorithm at the oracle's round, the best of a row bold."""
    names = in_paper_order(campaign.algorithms)
    seeds = [[campaign.values(name, "oracle", metric) for name in names] for metric in campaign.domains]
    means = np.array([[spread(list(v.values()))[0] if v else np.nan for v in row] for row in seeds])
    labels = [metric.removeprefix(DOMAIN_ACCURACY) for metric in campaign.domains]
    by = _CHOICES["oracle"].replace("\n", " ")
    note = f"{campaign.subtitle}; round chosen by {by}; mean over seeds; bold: best of its row"
    with styled_figure(2.6 + 0.95 * len(names), 2.3 + 0.36 * len(labels), axes_grid=False) as figure:
        texts = [["" if math.isnan(value) else f"{value:.3f}" for value in row] for row in means]
        best = [[text == max(row) for text in row] for row in texts]
        _heat_map(figure, means, texts, best, (names, labels), "validation accuracy")
        add_title(figure, f"{campaign.heading}: validation accuracy in each sub-environment", note)
        save(figure, path)


def inconsistency_picture(
    path: Path, title: str, names: Sequence[str], matrix: ArrayLike, *, note: str = ""
) -> None:
    """Draw the inconsistency of each pair of silos as a heat map, in units of a common power of ten."""
    values = np.asarray(matrix, float)
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    power = 0 if largest == 0 or 0.1 <= largest < 1000 else math.floor(math.log10(largest))
    shown = values / 10.0**power
    texts = [["" if math.isnan(value) else f"{value:.3g}" for value in row] for row in shown]
    size = 2.6 + (0.62 if len(names) <= 10 else 0.46) * max(len(names), 3)
    with styled_figure(size + 0.8, size, axes_grid=False) as figure:
        label = "inconsistency" + (f" (× 1e{power})" if power else "")
        _heat_map(figure, shown, texts, None, (names, names), label)
        add_title(figure, title, note)
        save(figure, path)


def _several_seeds(campaign: Campaign) -> bool:
    return any(len(seeds) > 1 for seeds in campaign.histories.values())


def _cut_axis(axes: Axes, spreads: Sequence[tuple[float, float]], paper: Mapping[str, PaperNumber]) -> float:
    """Set the limits of the axis, and return its start: the shortest bar has room for its number."""
    every = [*spreads, *((number.mean, number.std) for number in paper.values())]
    least = min(mean - std for mean, std in every)
    most = max(mean + std for mean, std in every)
    span = max(most - least, 0.02 * abs(most), 1e-6)
    start = max(0.0, least - 0.55 * span)
    axes.set_xlim(start, most + 0.08 * span)
    return start


def _draw_bars(
    axes: Axes, names: Sequence[str], spreads: Mapping[str, tuple[float, float]], start: float
) -> None:
    for row, name in enumerate(names):
        if name in spreads:
            mean, deviation = spreads[name]
            axes.barh(row, mean - start, left=start, height=0.68, color=colour_of(name))
            if deviation:
                axes.errorbar(mean, row, xerr=deviation, color="#333333", capsize=3, linewidth=1.2)
            style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "color": "white"}
            axes.annotate(f"{mean:.3f}", (start, row), (4, 0), **style)


def _draw_paper(axes: Axes, names: Sequence[str], paper: Mapping[str, PaperNumber]) -> None:
    style: dict[str, Any] = {"fmt": "D", "color": "black", "markerfacecolor": "white", "markersize": 5}
    for row, name in enumerate(names):
        if name in paper:
            mean, deviation = paper[name].mean, paper[name].std
            axes.errorbar(mean, row + 0.22, xerr=deviation, capsize=2, linewidth=0.9, **style)


def _heat_map(
    figure: Figure,
    values: NDArray[np.float64],
    texts: Sequence[Sequence[str]],
    bold: Sequence[Sequence[bool]] | None,
    labels: tuple[Sequence[str], Sequence[str]],
    meaning: str,
) -> None:
    """Draw numbers in coloured cells, light on dark and dark on light, with a scale at the side."""
    axes = figure.add_subplot()
    image = axes.imshow(values, cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(labels[0])), labels[0], rotation=35, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(labels[1])), labels[1])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    least, most = image.get_clim()
    middle = least + 0.6 * (most - least)
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5 if len(labels[0]) <= 10 else 7.5}
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if value > middle else "black"
        weight = "bold" if bold is not None and bold[row][column] else "normal"
        axes.text(column, row, texts[row][column], color=colour, weight=weight, **style)
    figure.colorbar(image, ax=axes, label=meaning, shrink=0.9)
