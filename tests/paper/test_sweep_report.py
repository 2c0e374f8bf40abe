"""A sweep over lambda is chosen by validation, and shows the test site beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fedilc.errors import ConfigError
from fedilc.evaluation.selection import Record
from fedilc.paper import sweep as lambdas
from fedilc.paper.sweep import Swept, chosen_lambda, lambda_picture, lambda_table
from fedilc.report.plots import COLOURS, save

# Validation is lowest at 1, the test site's loss at 10.
VALIDATION = {0.0: 0.40, 0.1: 0.35, 1.0: 0.30, 10.0: 0.45}
TEST = {0.0: 0.90, 0.1: 0.80, 1.0: 0.70, 10.0: 0.50}


def swept(*, validated: bool = True, tested: bool = True, seeds: int = 2) -> Swept:
    """Runs whose numbers are known: the oracle's loss is 0.1 below, seeds are 0.02 apart."""

    def records(value: float, less: float) -> list[Record]:
        found = []
        for seed in range(seeds):
            record: dict[str, float] = {"round": 7}
            if validated:
                record["validation_loss"] = VALIDATION[value] + 0.02 * seed
            if tested:
                record |= {"test_loss": TEST[value] - less + 0.02 * seed, "test_accuracy": 0.75}
            found.append(record)
        return found

    less = {"oracle": 0.1, "validation": 0.0, "last": 0.0}
    can = {"oracle": tested, "validation": validated, "last": True}
    return {by: {value: records(value, less[by]) for value in VALIDATION} for by in less if can[by]}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is saved, which still reaches its file."""
    figures: list[Figure] = []

    def keep(figure: Figure, path: Path) -> None:
        figures.append(figure)
        save(figure, path)

    monkeypatch.setattr(lambdas, "save", keep)
    return figures


def test_lambda_is_chosen_where_validation_is_lowest_and_not_where_the_test_site_is() -> None:
    assert chosen_lambda(swept()) == 1.0
    table = lambda_table("demo", "demo", swept(), note="2 seeds")
    assert [column.title for column in table.columns] == [
        "lambda",
        "validation loss",
        *("OOD loss, validation", "OOD accuracy, validation", "OOD loss, last", "OOD accuracy, last"),
        *("OOD loss, oracle", "OOD accuracy, oracle"),
    ]
    assert [row[0].text for row in table.rows if row[0].bold] == ["1"]
    assert [cell.text for row in table.rows for cell in row if cell.bold] == ["1", "0.310±0.014"]
    assert [cell.text for cell in table.rows[3][:3]] == ["10", "0.460±0.014", "0.510±0.014"]
    assert table.notes[0] == "2 seeds"
    assert table.notes[1].startswith("Validation chooses lambda = 1 (bold)")
    assert table.notes[2] == "oracle: the round of lowest test loss, which nobody can know in practice."


def test_without_validation_no_lambda_is_chosen_and_without_a_test_set_none_is_shown() -> None:
    blind = swept(validated=False)
    assert chosen_lambda(blind) is None
    table = lambda_table("demo", "demo", blind, note="2 seeds")
    assert not any(cell.bold for row in table.rows for cell in row)
    assert table.notes[1] == "No silo has validation examples, so no lambda is chosen."
    alone = lambda_table("demo", "demo", swept(tested=False), note="2 seeds")
    assert [column.title for column in alone.columns] == ["lambda", "validation loss"]
    assert not any("nobody can know" in note for note in alone.notes)


def test_the_picture_marks_the_lambda_that_validation_chooses_in_both_panels(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    lambda_picture(tmp_path / "lambda.png", "demo", swept(), note='2 seeds; fishr_reduction="sum"')
    validation, test = drawn[0].axes
    assert [label.get_text() for label in test.get_xticklabels()] == ["0", "0.1", "1", "10"]
    zero, *others = test.get_xticks()
    assert others == pytest.approx([-1, 0, 1])
    assert zero < -1.4
    for axes, height in ((validation, 0.31), (test, 0.71)):
        red = [line for line in axes.lines if to_hex(line.get_color()) == COLOURS[3]]
        assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in red] == [pytest.approx((0, height))]
    heights = [list(line.get_ydata()) for line in test.lines if len(line.get_ydata()) == 3]
    assert heights == [pytest.approx([0.81, 0.71, 0.51]), pytest.approx([0.71, 0.61, 0.41])]
    title = " ".join(drawn[0].get_suptitle().split())
    assert title == (
        'demo 2 seeds; fishr_reduction="sum"; mean ± sample deviation over seeds; chosen by validation: '
        "lambda = 1"
    )
    labels = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert "at the oracle's round, which nobody can know" in labels


@pytest.mark.parametrize("values", [[0.0], [3.0], [0.0, 5.0], list(np.geomspace(1e-3, 1e3, 15))])
def test_any_choice_of_lambdas_can_be_drawn(tmp_path: Path, drawn: list[Figure], values: list[float]) -> None:
    records: list[Record] = [{"round": 1, "validation_loss": 0.5, "test_loss": 0.5}]
    found = {criterion: dict.fromkeys(values, records) for criterion in ("oracle", "validation", "last")}
    lambda_picture(tmp_path / "lambda.png", "demo", found)
    assert len(drawn[0].axes[0].get_xticks()) == len(values)
    assert "deviation" not in drawn[0].get_suptitle()
    everything, size = drawn[0].get_tightbbox(), drawn[0].get_size_inches()
    assert everything.x0 > -0.02
    assert everything.y0 > -0.02
    assert everything.x1 < size[0] + 0.02
    assert everything.y1 < size[1] + 0.02


def test_what_cannot_be_drawn_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs validation examples or a test set"):
        lambda_picture(tmp_path / "lambda.png", "demo", swept(validated=False, tested=False))
    assert not (tmp_path / "lambda.png").exists()
