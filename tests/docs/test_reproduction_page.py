"""The page on the reproduction says what the committed results say."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from benchmarks.findings import ROOT, Findings
from benchmarks.reproduction_page import PAGE, PARTS, filled

from fedilc.paper.campaign_folder import read_campaign
from fedilc.paper.claims import claims_of, judge, paper_numbers
from fedilc.paper.tables import campaign_tables
from fedilc.report.tables import markdown

CAMPAIGNS = ("color-mnist", "rotated-cifar10", "eicu-demo", "eicu-synthetic")


def test_the_page_is_what_the_results_make_of_it() -> None:
    page = PAGE.read_text()
    assert set(re.findall(r"<!-- results: ([\w-]+) -->", page)) == set(PARTS)
    assert filled(page) == page, "run `python -m benchmarks.reproduction_page`"


def test_what_the_page_says_of_color_mnist_is_so() -> None:
    page = " ".join(PAGE.read_text().split())
    assert (
        "the mean loss of every algorithm is below the paper's, and that of `fishr-inter-geo` is the lowest, "
        "as in the paper. Corrected for the number of tests, its lead over `fedsgd` is significant; its lead "
        "over all others is not"
    ) in page
    found = Findings("color-mnist")
    paper = paper_numbers("color-mnist", "test_loss")
    assert all(found.mean(name, "oracle") < paper[name].mean for name in found.names)
    assert found.order("oracle")[0] == min(paper, key=lambda name: paper[name].mean) == "fishr-inter-geo"
    judged = judge(found.campaign, claims_of(found.campaign))
    verdicts = {
        claim.sentence: one.verdict
        for (claim, criterion), one in judged.items()
        if criterion == "oracle" and claim.metric == "test_loss"
    }
    assert verdicts["fishr-inter-geo beats all others"] == "yes, uncorrected"
    assert verdicts["fishr-inter-geo beats fedsgd"] == "yes"


def test_other_sweeps_take_their_sentence_back_and_move_the_lambda_chosen(tmp_path: Path) -> None:
    for folder in (ROOT / "results").glob("*-lambda"):
        shutil.copytree(folder, tmp_path / folder.name)
    file = tmp_path / "color-mnist-lambda" / "tables" / "lambda.csv"
    with file.open() as lines:
        rows = list(csv.DictReader(lines))

    def write(row: int, column: str, value: str) -> None:
        changed = [{**one, column: value} if number == row else one for number, one in enumerate(rows)]
        with file.open("w") as lines:
            writer = csv.DictWriter(lines, rows[0])
            writer.writeheader()
            writer.writerows(changed)

    write(1, "validation loss mean", "0.1")
    assert any(
        "**color-mnist**" in line and "chooses lambda = 1 " in line for line in PARTS["lambda"](tmp_path)
    )
    write(1, "OOD loss, oracle mean", "0.1")
    with pytest.raises(
        ValueError, match="do not support this: At the oracle's round the loss is lowest at the"
    ):
        PARTS["lambda"](tmp_path)


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_the_committed_tables_are_those_of_the_committed_numbers(name: str) -> None:
    committed = (ROOT / "results" / name / "tables.md").read_text()
    for table in campaign_tables(read_campaign(ROOT / "results" / name)[0]):
        assert markdown(table) in committed, "run `fedilc report results/*`"


@pytest.mark.parametrize(
    ("name", "winner", "criterion", "metric", "sentence"),
    [
        ("color-mnist", "fedsgd", "last", "round", "are the same test here"),
        ("color-mnist", "fedsgd", "oracle", "test_loss", "below the paper's|has the lowest mean loss"),
        ("color-mnist", "geometric", "last", "test_loss", "has the lowest mean loss"),
        ("color-mnist", "fishr-intra-geo", "last", "test_accuracy", "accuracy goes the other way"),
        ("eicu-demo", "fishr-intra-geo", "validation", "test_loss", "is the worst of the six"),
        ("eicu-synthetic", "fedsgd", "validation", "test_loss", "come first"),
    ],
)
def test_other_results_take_a_sentence_back(
    tmp_path: Path, name: str, winner: str, criterion: str, metric: str, sentence: str
) -> None:
    """Half the loss of one, or half again the accuracy, and some sentence no longer holds."""
    shutil.copytree(ROOT / "results" / name, tmp_path / name)
    file = tmp_path / name / "summary.json"
    summary = json.loads(file.read_text())
    found = summary[winner][criterion][metric]
    found["seeds"] = [(1.5 if metric == "test_accuracy" else 0.5) * value for value in found["seeds"]]
    file.write_text(json.dumps(summary))
    with pytest.raises(ValueError, match=f"do not support this: .*({sentence})"):
        PARTS[name](tmp_path)


def test_other_results_of_rotated_cifar10_are_told_in_another_order(tmp_path: Path) -> None:
    name = "rotated-cifar10"
    shutil.copytree(ROOT / "results" / name, tmp_path / name)
    file = tmp_path / name / "summary.json"
    summary = json.loads(file.read_text())
    found = summary["fedsgd"]["last"]["test_loss"]
    found["seeds"] = [0.5 * value for value in found["seeds"]]
    file.write_text(json.dumps(summary))
    (line,) = [line for line in PARTS[name](tmp_path) if line.startswith("- at the last round: ")]
    assert line.startswith("- at the last round: `fedsgd` ")
    assert line not in PARTS[name](ROOT / "results")
