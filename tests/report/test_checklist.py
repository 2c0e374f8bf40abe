"""checklist.md: every item once, and no section that the report does not have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hospitals import hospitals, made_result, study_table

from fedilc.data import Federation, Silo
from fedilc.report.checklist import TRIPOD_AI, TRIPOD_CLUSTER, Item, checklist, covered
from fedilc.report.html.study import study_part
from fedilc.report.study_files import write_study
from fedilc.studies.study.data import StudyArrays, StudyData
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.settings import StudySettings

# The last letter of each item that has some, as published: BMJ 2024;385:e078378 and BMJ 2023;380:e071018.
AI = {3: "c", 5: "b", 6: "c", 8: "c", 9: "c", 12: "g", 18: "f", 20: "c", 23: "b", 27: "c"}
CLUSTER = {3: "b", 4: "b", 6: "b", 7: "d", 8: "g", 10: "c", 12: "b", 13: "b", 16: "c"}


def single(number: str) -> list[str]:
    """Return the items that a row is about: "3a-c" is 3a, 3b and 3c."""
    digits, first, last = re.fullmatch(r"(\d+)([a-z]?)-?([a-z]?)", number).groups()
    if not first:
        return [digits]
    return [f"{digits}{chr(letter)}" for letter in range(ord(first), ord(last or first) + 1)]


@pytest.mark.parametrize(("items", "last", "letters"), [(TRIPOD_AI, 27, AI), (TRIPOD_CLUSTER, 19, CLUSTER)])
def test_every_published_item_is_there_once_and_in_order(
    items: tuple[Item, ...], last: int, letters: dict[int, str]
) -> None:
    published = [
        one
        for number in range(1, last + 1)
        for one in single(f"{number}a-{letters[number]}" if number in letters else str(number))
    ]
    assert [one for item in items for one in single(item.number)] == published
    assert all(item.authors and item.subject for item in items)


def pictures(_: Path) -> StudyData:
    silos = [Silo(name, torch.rand(30, 1, 8, 8), [0, 1, 2] * 10) for name in "abcd"]
    return StudyArrays.of(Federation("pictures", silos, loss="multiclass"))


def tables(folder: Path) -> StudyData:
    return study_table(folder, hospitals(4, rows=60))


@pytest.mark.parametrize("make", [pictures, tables])
def test_the_sections_that_it_names_are_in_the_report(tmp_path: Path, make: type) -> None:
    plan = StudyPlan(make(tmp_path), StudySettings(algorithms=("fedavg", "geometric"), references=False))
    study = write_study(tmp_path / "study", made_result(plan, {"fedavg": 0.7, "geometric": 0.8}))
    there = {"Verdict", *(title for title, _ in study_part(tmp_path / "study").sections)}
    named = {name for item in (*TRIPOD_AI, *TRIPOD_CLUSTER) for name in covered(item, study)}
    assert named <= there
    text = (tmp_path / "study" / "checklist.md").read_text()
    assert text == checklist(study)
    assert "Not done in this study: Subgroups, Without indicators of missing values." in text
    rows = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    assert len(rows) == len(TRIPOD_AI) + len(TRIPOD_CLUSTER)
    assert all(row.count("|") == 5 for row in rows)
