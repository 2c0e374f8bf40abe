"""Pictures of a campaign: the right lines, bars and cells, the same colours, small files, nothing cut off."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaigns import DOMAINS, LATER, SIX, campaign, history
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from fedilc import algorithms
from fedilc.paper import campaign_folder as campaign_plots
from fedilc.paper.campaign import Campaign
from fedilc.paper.campaign_folder import (
    bars_picture,
    campaign_pictures,
    curves_picture,
    domains_picture,
    inconsistency_picture,
)
from fedilc.report import plots as run_plots
from fedilc.report.plots import COLOURS, colour_of, save

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is saved, which still reaches its file."""
    figures: list[Figure] = []

    def keep(figure: Figure, path: Path) -> None:
        figures.append(figure)
        save(figure, path)

    for module in (campaign_plots, run_plots):
        monkeypatch.setattr(module, "save", keep)
    return figures


def title(figure: Figure) -> str:
    return " ".join(figure.get_suptitle().split())


def assert_nothing_is_cut_off(figure: Figure) -> None:
    """All titles, labels and ticks lie inside the picture."""
    everything = figure.get_tightbbox()
    page = Bbox.from_bounds(0, 0, *figure.get_size_inches()).padded(0.02)
    assert page.x0 <= everything.x0 < everything.x1 <= page.x1
    assert page.y0 <= everything.y0 < everything.y1 <= page.y1


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_a_campaign_has_curves_and_bars_and_a_heat_map_where_it_has_sub_environments(tmp_path: Path) -> None:
    paths = campaign_pictures(tmp_path, campaign(domains=DOMAINS))
    names = ["curves.png", "ood-loss.png", "ood-accuracy.png", "sub-environments.png"]
    assert [path.name for path in paths] == names
    for path in paths:
        assert path.read_bytes().startswith(PNG)
        assert path.stat().st_size < 200_000
    untested = [{"round": 1, "train_loss": 0.5}]
    assert campaign_pictures(tmp_path, Campaign("demo", {"fedsgd": {0: untested}})) == paths[:1]
    assert campaign_pictures(tmp_path, Campaign("demo", {})) == []


def test_a_curve_is_the_mean_over_seeds_in_a_band_from_least_to_most(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    curves_picture(tmp_path / "curves.png", campaign())
    panels = drawn[0].axes
    assert [axes.get_title() for axes in panels] == [
        "train loss (mean over silos)",
        "validation loss (mean over silos)",
        "OOD test loss",
    ]
    line = next(line for line in panels[2].lines if line.get_label() == "fedsgd")
    assert list(line.get_xdata()) == [6, 7, 8]
    assert line.get_ydata() == pytest.approx([0.566 + more for more in LATER.values()])
    band = panels[2].collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(min(SIX["fedsgd"]))
    assert band[:, 1].max() == pytest.approx(max(SIX["fedsgd"]) + 0.2)
    assert "band: least to most over seeds" in title(drawn[0])


def test_a_curve_has_the_rounds_that_all_its_seeds_have_measured(tmp_path: Path, drawn: list[Figure]) -> None:
    sparse = [history(0.5)[0], history(0.5)[1] | {"test_loss": None}, history(0.5)[2]]
    runs = {0: history(0.5), 1: sparse, 2: history(0.5)[:2]}
    curves_picture(tmp_path / "curves.png", Campaign("demo", {"fedsgd": runs}))
    assert [list(axes.lines[0].get_xdata()) for axes in drawn[0].axes] == [[6, 7], [6, 7], [6]]


def test_an_algorithm_has_the_same_colour_in_every_picture_whoever_is_beside_it(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    some = {name: SIX[name] for name in ("fishr-intra-geo", "fedcurv")}
    for one in (campaign(), campaign(some)):
        curves_picture(tmp_path / "curves.png", one)
        bars_picture(tmp_path / "bars.png", one)
    for curves in drawn[::2]:
        for line in curves.axes[0].lines:
            assert line.get_color() == colour_of(str(line.get_label()))
    for bars in drawn[1::2]:
        names = [label.get_text() for label in bars.axes[0].get_yticklabels()]
        colours = [to_hex(patch.get_facecolor()) for patch in bars.axes[0].patches]
        assert colours == [colour_of(name) for name in names]
    assert [colour_of(name) for name in algorithms.PAPER] == list(COLOURS[:6])
    assert colour_of("my own") == COLOURS[-1]


def test_bars_end_at_our_means_and_diamonds_stand_at_the_papers_under_the_oracle_only(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    bars_picture(tmp_path / "bars.png", campaign())
    oracle, validation, last = drawn[0].axes
    ends = [patch.get_x() + patch.get_width() for patch in oracle.patches]
    assert ends == pytest.approx([0.566, 0.566, 0.559, 0.542, 0.555, 0.552])
    diamonds = [line.get_xdata()[0] for line in oracle.lines if line.get_marker() == "D"]
    assert diamonds == pytest.approx([0.566, 0.562, 0.559, 0.542, 0.555, 0.552])
    assert not [line for axes in (validation, last) for line in axes.lines if line.get_marker() == "D"]
    assert texts(drawn[0])[:6] == ["0.566", "0.566", "0.559", "0.542", "0.555", "0.552"]
    assert "axis is cut" in oracle.get_xlabel()
    assert "diamonds: the paper's, over five seeds" in title(drawn[0])


def test_an_axis_that_begins_at_zero_is_not_called_cut(tmp_path: Path, drawn: list[Figure]) -> None:
    bars_picture(tmp_path / "bars.png", campaign({"fedsgd": [0.01], "fedcurv": [0.9]}))
    assert drawn[0].axes[0].get_xlim()[0] == 0
    assert drawn[0].axes[0].get_xlabel() == "OOD test loss"


@pytest.mark.parametrize("name", ["eicu-demo", "eicu-synthetic", "color-digits"])
def test_bars_of_other_data_have_no_diamonds(tmp_path: Path, drawn: list[Figure], name: str) -> None:
    bars_picture(tmp_path / "bars.png", campaign(name=name))
    assert not [line for axes in drawn[0].axes for line in axes.lines if line.get_marker() == "D"]
    assert "diamonds" not in title(drawn[0])


def test_the_heat_map_has_each_sub_environments_mean_and_the_best_of_a_row_in_bold(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    one = campaign({"fedsgd": [0.5, 0.6], "fedcurv": [0.7, 0.7]}, domains=DOMAINS)
    domains_picture(tmp_path / "map.png", one)
    axes = drawn[0].axes[0]
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["silo-1 10°", "silo-1 25°", "silo-2 -90°"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["fedsgd", "fedcurv"]
    assert texts(drawn[0]) == ["0.450", "0.300"] * 3
    assert [text.get_weight() for text in axes.texts] == ["bold", "normal"] * 3
    assert "round chosen by oracle" in title(drawn[0])


LONG = "1 seed, 40 of 301 rounds, 20 % of the training images, every fifth round evaluated, on one machine"


@pytest.mark.parametrize("losses", [SIX, {"fedsgd": [0.5]}], ids=["six algorithms", "one run"])
def test_every_picture_says_the_size_and_that_data_are_synthetic_and_nothing_is_cut_off(
    tmp_path: Path, drawn: list[Figure], losses: Any
) -> None:
    campaign_pictures(tmp_path, campaign(losses, "eicu-synthetic", DOMAINS, note=LONG, synthetic=True))
    assert len(drawn) == 4
    for figure in drawn:
        assert "eicu-synthetic (SYNTHETIC DATA)" in title(figure)
        assert LONG in title(figure)
        assert 'fishr_reduction="sum"' in title(figure)
        assert_nothing_is_cut_off(figure)


def test_inconsistency_is_a_heat_map_with_its_numbers_by_a_common_power_of_ten(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    matrix = [[0.0, 2.5e-5], [1.25e-6, np.nan]]
    inconsistency_picture(tmp_path / "map.png", "color-mnist", ["a", "b"], matrix, note="1 seed")
    assert texts(drawn[0]) == ["0", "2.5", "0.125", ""]
    assert drawn[0].axes[1].get_ylabel() == "inconsistency (× 1e-5)"
    assert title(drawn[0]) == "color-mnist 1 seed"
    assert_nothing_is_cut_off(drawn[0])


@pytest.mark.parametrize("silos", [1, 5, 20])
def test_inconsistency_of_many_silos_is_readable_and_small(
    tmp_path: Path, drawn: list[Figure], silos: int
) -> None:
    matrix = np.arange(silos**2).reshape(silos, silos) / 3
    names = [f"hospital-{number}" for number in range(100, 100 + silos)]
    inconsistency_picture(tmp_path / "map.png", "demo", names, matrix)
    assert (tmp_path / "map.png").stat().st_size < 200_000
    figure = drawn[0]
    boxes = [text.get_window_extent() for text in figure.axes[0].texts[:silos]]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert_nothing_is_cut_off(figure)


def test_the_same_campaign_gives_the_same_picture_bit_by_bit(tmp_path: Path) -> None:
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path in paths:
        domains_picture(path, campaign(domains=DOMAINS))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert not list(tmp_path.rglob("*.tmp"))
