"""The paper's tables from a campaign: ours, the paper's, how far apart, and more than noise or not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from campaigns import DOMAINS, SIX, campaign, history
from terminals import in_terminal

from fedilc.paper.campaign import Campaign
from fedilc.paper.claims import ORDER
from fedilc.paper.tables import campaign_tables
from fedilc.report.tables import TableData, latex, markdown, rich_table, write_tables

NINE = {"silo-1": ("10°", "25°", "40°"), "silo-2": ("60°", "75°", "90°"), "silo-3": ("-10°", "-40°", "-90°")}


def tables(one: Campaign) -> dict[str, TableData]:
    return {table.name: table for table in campaign_tables(one)}


def row(table: TableData, *first: str) -> dict[str, str]:
    """A row by its first cells, under the headings of the columns."""
    found = [cells for cells in table.rows if tuple(cell.text for cell in cells[: len(first)]) == first]
    assert len(found) == 1
    return {column.title: cell.text for column, cell in zip(table.columns, found[0], strict=True)}


def bold(table: TableData, group: str, column: str) -> set[str]:
    number = [one.title for one in table.columns].index(column)
    return {cells[1].text for cells in table.rows if cells[0].text == group and cells[number].bold}


def test_a_campaign_has_a_table_for_each_thing_that_the_paper_prints() -> None:
    assert list(tables(campaign())) == [
        "ood-loss",
        "ood-accuracy",
        "ood-aucroc",
        "ood-aucpr",
        "ood-aucroc-thresholded",
        "ood-aucpr-thresholded",
        "fairness-variance",
        "fairness-entropy",
        "claims",
    ]
    assert list(tables(campaign(name="rotated-cifar10", domains=NINE))) == [
        "ood-loss",
        "ood-accuracy",
        "fairness-variance",
        "fairness-entropy",
        "sub-environments",
        "sub-environments-compared",
        "claims",
    ]


def test_the_loss_table_has_ours_beside_the_papers_for_every_algorithm_under_every_criterion() -> None:
    table = tables(campaign())["ood-loss"]
    assert [(cells[0].text, cells[1].text) for cells in table.rows] == [
        (criterion, name) for criterion in ("oracle", "validation", "last") for name in ORDER
    ]
    assert row(table, "oracle", "fishr-inter-geo") == {
        "round chosen by": "oracle",
        "algorithm": "fishr-inter-geo",
        "ours": "0.542±0.002",
        "paper": "0.542±0.006",
        "diff. in σ": "+0.0",
        "against fedsgd": "better",
        "p: t/flips": "<.001/.062",
    }
    assert row(table, "oracle", "geometric")["against fedsgd"] == "within noise"
    assert row(table, "last", "fishr-inter-geo") == {
        "round chosen by": "last",
        "algorithm": "fishr-inter-geo",
        "ours": "0.742±0.002",
        "paper": "-",
        "diff. in σ": "-",
        "against fedsgd": "better",
        "p: t/flips": "<.001/.062",
    }
    assert row(table, "oracle", "fedsgd")["against fedsgd"] == "-"


def test_the_difference_is_in_the_papers_deviations_and_marked_where_ours_is_much_worse() -> None:
    far = {"fedsgd": [0.566 + 3 * 0.009] * 2, "geometric": [0.562 - 3 * 0.006] * 2, "fedcurv": [0.562] * 2}
    loss, accuracy = (tables(campaign(far))[name] for name in ("ood-loss", "ood-accuracy"))
    assert row(loss, "oracle", "fedsgd")["diff. in σ"] == "+3.0!"
    assert row(loss, "oracle", "geometric")["diff. in σ"] == "-3.0"
    assert row(loss, "oracle", "fedcurv")["diff. in σ"] == "+1.0"
    assert row(accuracy, "oracle", "fedsgd")["diff. in σ"] == "-124.0!"
    assert [cells[4].parts[1] for cells in loss.rows[:3]] == ["worse", "better", "within two"]


def test_the_best_of_each_criterion_is_bold_in_ours_and_in_the_papers_column_ties_included() -> None:
    found = tables(campaign({**SIX, "fedcurv": SIX["fishr-inter-geo"]}))
    for criterion in ("oracle", "validation", "last"):
        assert bold(found["ood-loss"], criterion, "ours") == {"fishr-inter-geo", "fedcurv"}
    assert bold(found["ood-loss"], "oracle", "paper") == {"fishr-inter-geo"}
    assert bold(found["ood-loss"], "last", "paper") == set()
    assert bold(found["ood-accuracy"], "oracle", "ours") == {"fishr-inter-geo", "fedcurv"}
    eicu = tables(campaign(name="eicu"))["ood-loss"]
    assert bold(eicu, "oracle", "paper") == {"geometric", "fishr-intra-geo"}
    assert bold(tables(campaign({"fedsgd": [0.5]}))["ood-loss"], "last", "ours") == set()


def test_an_algorithm_that_was_not_run_keeps_its_row_with_the_papers_number() -> None:
    table = tables(campaign({"fedsgd": [0.5, 0.6]}))["ood-loss"]
    assert row(table, "oracle", "fedcurv") == {
        "round chosen by": "oracle",
        "algorithm": "fedcurv",
        "ours": "-",
        "paper": "0.559±0.003",
        "diff. in σ": "-",
    }
    assert [cells[1].text for cells in table.rows if cells[0].text == "last"] == ["fedsgd"]


def test_areas_of_scores_stand_alone_and_thresholded_ones_beside_the_papers_with_a_dagger() -> None:
    found = tables(campaign())
    for name in ("ood-aucroc", "ood-aucpr"):
        assert "paper" not in [column.title for column in found[name].columns]
        assert "†" not in found[name].title
        marked = found[f"{name}-thresholded"]
        assert "†" in marked.title
        assert marked.notes[-1].startswith("† The authors' reading")
        assert "thresholded predictions, averaged batch by batch" in marked.notes[-1]
    assert row(found["ood-aucroc-thresholded"], "oracle", "fedsgd")["paper"] == "0.780±0.001"
    assert row(found["ood-aucpr-thresholded"], "oracle", "fedsgd")["paper"] == "0.837±0.002"


def test_fairness_is_scaled_as_in_the_paper_and_over_sub_environments_where_there_are_any() -> None:
    silos = tables(campaign({"fedsgd": [0.5, 0.5]}))
    assert "over silos (×1000)" in silos["fairness-variance"].title
    assert row(silos["fairness-variance"], "oracle", "fedsgd")["ours"] == "0.500±0.000"
    assert "paper" not in [column.title for column in silos["fairness-variance"].columns]
    found = tables(campaign({"fedsgd": [0.5, 0.5]}, "rotated-cifar10", NINE))
    assert "over sub-environments (×1000)" in found["fairness-variance"].title
    assert row(found["fairness-variance"], "oracle", "fedsgd")["paper"] == "0.809±0.251"
    assert row(found["fairness-entropy"], "oracle", "fedsgd")["ours"] == "21.850±0.000"
    assert row(found["fairness-entropy"], "oracle", "fedsgd")["paper"] == "21.948±0.007"


def test_sub_environments_have_the_papers_layout_and_a_table_beside_the_papers_numbers() -> None:
    found = tables(campaign({"fedsgd": [0.55, 0.57], "fedcurv": [0.6, 0.6]}, "rotated-cifar10", NINE))
    wide, long = found["sub-environments"], found["sub-environments-compared"]
    assert len(wide.rows) == 27
    assert row(wide, "oracle", "silo-3 -90°")["fedsgd"] == "0.440 ±0.014"
    assert bold(wide, "oracle", "fedsgd") == {f"{silo} {one}" for silo in NINE for one in NINE[silo]}
    assert row(long, "silo-1 10°", "fedsgd")["paper"] == "0.443±0.010"
    assert row(long, "silo-3 -90°", "fedcurv")["paper"] == "0.380±0.010"
    assert row(long, "silo-3 -90°", "fedcurv")["diff. in σ"] == "+2.0"
    assert row(long, "silo-2 75°", "fishr-inter-geo")["paper"] == "0.443±0.009"


def test_sub_environments_that_the_paper_does_not_know_have_no_column_for_it() -> None:
    found = tables(campaign({"fedsgd": [0.5]}, "color-digits", DOMAINS))
    assert list(found)[-1] == "sub-environments-compared"
    assert [column.title for column in found["sub-environments-compared"].columns] == [
        "sub-environment",
        "algorithm",
        "ours",
    ]


@pytest.mark.parametrize("name", ["color-mnist", "rotated-cifar10", "eicu", "eicu-demo", "color-digits"])
def test_every_table_says_the_size_of_the_campaign_and_the_reduction(name: str) -> None:
    one = campaign(name=name, domains=DOMAINS if name == "rotated-cifar10" else None, note="tiny, 20 %")
    for table in campaign_tables(one):
        assert table.title.startswith(f"{name}: ")
        assert table.notes[0] == f'{name}: tiny, 20 %; fishr_reduction="sum", as in the authors\' code.'
    other = campaign(fishr_reduction="mean")
    assert 'fishr_reduction="mean", as in the paper\'s' in campaign_tables(other)[0].notes[0]


def test_every_table_of_synthetic_data_says_so_in_its_title_and_its_note() -> None:
    for table in campaign_tables(campaign(name="eicu-synthetic", synthetic=True)):
        assert "SYNTHETIC DATA" in table.title
        assert table.notes[0].startswith("SYNTHETIC DATA. eicu-synthetic: ")
    assert not any("SYNTHETIC" in markdown(table) for table in campaign_tables(campaign()))


@pytest.mark.parametrize("name", ["eicu-demo", "eicu-synthetic"])
def test_other_data_than_the_papers_are_not_measured_in_its_deviations(name: str) -> None:
    table = tables(campaign(name=name))["ood-loss"]
    headings = [column.title for column in table.columns]
    assert "paper, other data" in headings
    assert "diff. in σ" not in headings
    assert any("of the full eICU database, not of these data" in note for note in table.notes)


def test_one_seed_shows_no_deviation_and_is_not_tested() -> None:
    table = tables(campaign({"fedsgd": [0.5], "fedcurv": [0.4]}))["ood-loss"]
    found = row(table, "oracle", "fedcurv")
    assert (found["ours"], found["against fedsgd"], found["p: t/flips"]) == ("0.400", "not tested", "-")


def test_a_mean_over_fewer_seeds_than_were_run_says_so_and_so_do_runs_of_unequal_size() -> None:
    broken = [one | {"test_loss": None} for one in history(0.5)[2:]]
    runs = {0: history(0.5), 1: history(0.5), 2: [*history(0.5)[:2], *broken]}
    one = Campaign("color-mnist", {"fedsgd": runs, "fedcurv": {0: history(0.5)[:2]}}, "3 seeds")
    table = tables(one)["ood-loss"]
    assert row(table, "last", "fedsgd")["ours"] == "0.700±0.000 (2 of 3 seeds)"
    assert "fedsgd 3 seeds, 8 rounds; fedcurv 1 seed, 7 rounds" in table.notes[0]


def test_without_the_baseline_nothing_is_tested_against_it() -> None:
    table = tables(campaign({"fedcurv": [0.5] * 3, "geometric": [0.4] * 3}))["ood-loss"]
    assert not any("fedsgd" in column.title for column in table.columns)
    assert not any("p < 0.05" in note for note in table.notes)


def test_a_campaign_without_a_test_set_has_the_tables_it_can_have() -> None:
    rounds = [{"round": 1, "validation_loss": 0.5, "fairness": {"variance": 0.1, "entropy": 1.0}}]
    found = tables(Campaign("mine", {"fedsgd": {0: rounds}}))
    assert list(found) == ["fairness-variance", "fairness-entropy"]
    assert campaign_tables(Campaign("mine", {})) == []


@pytest.mark.parametrize(
    ("name", "domains"), [("color-mnist", None), ("rotated-cifar10", NINE), ("eicu-synthetic", None)]
)
def test_every_table_fits_a_terminal_of_eighty_columns(
    name: str, domains: dict[str, tuple[str, ...]] | None
) -> None:
    one = campaign({key: [10 * loss for loss in SIX[key]] for key in SIX}, name, domains)
    for table in campaign_tables(one):
        text = in_terminal(rich_table(table), 80)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
        words = {word for cells in table.rows for cell in cells for word in cell.text.split()}
        assert words <= set(re.split(r"\s+", text))


def test_every_table_has_as_many_cells_in_each_row_of_latex_as_columns(tmp_path: Path) -> None:
    found = campaign_tables(campaign(name="rotated-cifar10", domains=NINE))
    assert len(write_tables(tmp_path, found)) == 2 + len(found)
    for table in found:
        body = latex(table).split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
        lines = [line for line in body.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
        assert len(lines) == len(table.rows)
        assert {line.count(" & ") for line in lines} == {len(table.columns) - 2}
