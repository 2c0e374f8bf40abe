"""The label's classes and the task are found from its values."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import polars as pl
import pytest

from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.silo_tables import read_tables, tables_of
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import DataError


def test_a_label_may_be_a_comparison(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,num\n1,0\n2,3\n3,1\n")
    found = read_tables([tmp_path / "a.csv"], TableSettings(label="num>0"))
    assert found.silos["a"].y.tolist() == [0, 1, 1]
    assert found.label.classes == ("num<=0", "num>0")
    assert found.fit(["a"]).columns == ("age",)


@pytest.mark.parametrize(
    ("values", "loss", "classes"),
    [
        ([0, 1, 1], "binary", ("0", "1")),
        (["low", "mid", "top"], "multiclass", ("low", "mid", "top")),
        ([2, 10, 3], "multiclass", ("2", "3", "10")),
        ([0.5, 1.25, 3.0], "regression", ()),
    ],
)
def test_the_task_is_found_from_the_label(values: list[object], loss: str, classes: tuple[str, ...]) -> None:
    found = tables_of({"s": pl.DataFrame({"a": [1, 2, 3], "y": values})}, TableSettings(label="y"))
    assert (found.label.loss, found.label.classes) == (loss, classes)


def test_labels_that_differ_in_case_and_spaces_are_one_class_at_every_silo() -> None:
    frames = {
        "a": pl.DataFrame({"x": [1, 2, 3, 4], "y": ["Yes", "YES", "yes ", "NO"]}),
        "b": pl.DataFrame({"x": [1, 2, 3], "y": ["no", "no", " yes"]}),
    }
    found = tables_of(frames, TableSettings(label="y"))
    assert found.label.classes == ("no", "YES")
    assert found.silos["a"].y.tolist() == [1, 1, 1, 0]
    assert found.label.encode(pl.Series(["yEs ", "No"])).tolist() == [1, 0]
    assert found.summaries["a"].labels == {"NO": 1, "YES": 3}
    assert found.label.class_rows(found.summaries["a"].labels) == [1, 3]
    assert found.fit(["b"]).label.classes == ("no", "yes")
    other = tables_of(frames, TableSettings(label="y", positive="NO"))
    assert other.silos["a"].y.tolist() == [0, 0, 0, 1]


def test_true_is_one_class_whether_a_file_is_read_as_text_or_as_logical_values() -> None:
    frames = {
        "a": pl.DataFrame({"x": [1, 2], "y": [True, False]}),
        "b": pl.DataFrame({"x": [1, 2, 3], "y": ["TRUE ", "false", None]}),
    }
    found = tables_of(frames, TableSettings(label="y", positive="true"))
    assert (found.label.classes, found.silos["b"].y.tolist()) == (("0", "1"), [1, 0])


@pytest.mark.parametrize(
    "words",
    [
        *(
            "nein ja",
            "non oui",
            "no sí",
            "NO Si",
            "ne da",
            "nie tak",
            "não sim",
            "nee ja",
            "nej ja",
            "нет да",
        ),
        *(
            "Alive Dead",
            "survived died",
            "alive Expired",
            "negative Positive",
            "control case",
            "n j",
            "hayır evet",
        ),
        *("benign malignant", "NORMAL abnormal", "- +", "absent present", "0 1", "1 2", "a b", "none mild"),
    ],
)
def test_the_word_that_means_yes_counts_as_1(words: str) -> None:
    zero, one = words.split()
    for rows in ({zero: 30, one: 20}, {one: 20, zero: 30}):
        assert LabelRule.parse("y").with_classes(rows).classes == (zero, one)


def test_a_value_too_rare_to_be_a_class_is_a_question_with_three_answers() -> None:
    frame = pl.DataFrame({"x": range(800), "status": [1] * 412 + [2] * 384 + [9] * 4})
    with pytest.raises(DataError) as asked:
        tables_of({"s": frame}, TableSettings(label="status"))
    assert str(asked.value) == (
        "the label 'status' is 1 in 412, 2 in 384, 9 in 4 of 800 rows, and 9 is too rare to be a class; use "
        '`missing = ["status=9"]` if such rows have no label, `positive = "2"` if all other values count as '
        '0, or `categories = {"status" = ["1", "2", "9"]}` if each value is a class'
    )
    none = tables_of({"s": frame}, TableSettings(label="status", missing=("status=9",)))
    assert (none.label.classes, len(none.silos["s"].y), none.silos["s"].unlabelled) == (("1", "2"), 796, 4)
    one = tables_of({"s": frame}, TableSettings(label="status", positive="2"))
    assert (one.label.classes, one.silos["s"].y.sum()) == (("not 2", "2"), 384)
    three = tables_of({"s": frame}, TableSettings(label="status", categories={"status": ["1", "2", "9"]}))
    assert (three.label.loss, three.label.classes) == ("multiclass", ("1", "2", "9"))


def test_three_classes_of_which_none_is_rare_and_two_of_which_one_is_rare_are_no_question() -> None:
    rule = LabelRule.parse("y")
    assert rule.with_classes({"1": 500, "2": 480, "9": 20}).loss == "multiclass"
    assert rule.with_classes({"0": 9990, "1": 10}).loss == "binary"
    assert rule.with_classes({"a": 300, "b": 300, "c": 300, "d": 2}).loss == "multiclass"
    with pytest.raises(DataError, match=r'`missing = \["y=8,9"\]` if'):
        rule.with_classes({"1": 5000, "2": 4800, "8": 2, "9": 20})


@pytest.mark.parametrize(
    ("rows", "asks"),
    [((50, 46, 4), True), ((200, 196, 4), True), ((45, 50, 5), False), ((495, 495, 10), False)],
)
def test_fewer_than_ten_rows_are_rare_too_if_they_are_under_five_percent(
    rows: tuple[int, int, int], asks: bool
) -> None:
    counts = dict(zip(("1", "2", "9"), rows, strict=True))
    with pytest.raises(DataError, match="9 is too rare to be a class") if asks else nullcontext():
        assert LabelRule.parse("y").with_classes(counts).classes == ("1", "2", "9")
