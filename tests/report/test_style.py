"""The style of pictures: the same colour for an algorithm everywhere, small files, errors in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from fedilc import algorithms
from fedilc.errors import ConfigError
from fedilc.report.plots import COLOURS, add_title, colour_of, line_of, save


def test_the_papers_algorithms_have_colours_of_their_own_and_all_others_are_grey() -> None:
    assert len({colour_of(name) for name in algorithms.PAPER}) == len(algorithms.PAPER)
    assert colour_of("no-such-algorithm") == COLOURS[-1]


def test_of_two_equal_curves_one_is_dashed() -> None:
    assert line_of("fishr-intra-arith") != line_of("fedcurv")


def test_a_long_title_is_broken_and_a_note_follows_it() -> None:
    figure = Figure(figsize=(3, 2))
    add_title(figure, "word " * 20, "; a note")
    lines = figure.get_suptitle().splitlines()
    assert len(lines) > 2
    assert lines[-1] == "a note"
    assert max(map(len, lines)) <= 36


def test_a_picture_is_a_png_of_256_colours_or_what_its_suffix_says(tmp_path: Path) -> None:
    figure = Figure(figsize=(2, 2))
    figure.add_subplot().plot([0, 1])
    save(figure, tmp_path / "new" / "a.png")
    with Image.open(tmp_path / "new" / "a.png") as image:
        assert image.mode == "P"
    save(figure, tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize("name", ["a.doc", "file/a.png"])
def test_what_cannot_be_written_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"the picture .* cannot be written: "):
        save(Figure(), tmp_path / name)
