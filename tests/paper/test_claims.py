"""The paper's claims: true of its own numbers, and found, not found or within noise in ours."""

from __future__ import annotations

from dataclasses import replace

import pytest
from campaigns import SIX, campaign
from scipy.stats import ttest_rel

from fedilc.evaluation.metrics import lower_is_better
from fedilc.paper.campaign import Campaign
from fedilc.paper.claims import CLAIMS, SECTION_4, Claim, claims_of, claims_table, judge, paper_numbers

CLAIM = Claim("test_loss", "fedcurv", ("fedsgd", "geometric"), "fedcurv beats the rest")
LOW, MIDDLE, HIGH = [0.10, 0.11, 0.12], [0.31, 0.30, 0.33], [0.50, 0.52, 0.51]
NOISY = [0.1, 0.5, 0.3]
NINE = {"silo-1": ("10°", "25°", "40°"), "silo-2": ("60°", "75°", "90°"), "silo-3": ("-10°", "-40°", "-90°")}


@pytest.mark.parametrize(
    ("benchmark", "claim"),
    [(benchmark, claim) for benchmark, claims in CLAIMS.items() for claim in claims],
    ids=lambda one: one if isinstance(one, str) else f"{one.metric}: {one.sentence}",
)
def test_every_claim_is_true_of_the_papers_own_means(benchmark: str, claim: Claim) -> None:
    numbers = paper_numbers(benchmark, claim.metric)
    assert claim.rivals
    for rival in claim.rivals:
        gap = numbers[rival].mean - numbers[claim.winner].mean
        assert (gap if lower_is_better(claim.metric) else -gap) > 0


@pytest.mark.parametrize(
    ("losses", "answer"),
    [
        ({"fedcurv": LOW, "fedsgd": HIGH, "geometric": MIDDLE}, "yes"),
        ({"fedcurv": MIDDLE, "fedsgd": HIGH, "geometric": LOW}, "no"),
        ({"fedcurv": LOW, "fedsgd": HIGH, "geometric": NOISY}, "within noise"),
        ({"fedcurv": MIDDLE, "fedsgd": LOW, "geometric": NOISY}, "no"),
        ({"fedcurv": LOW, "fedsgd": HIGH}, "yes"),
        ({"fedcurv": LOW[:1], "fedsgd": HIGH[:1], "geometric": MIDDLE[:1]}, "yes?"),
        ({"fedcurv": MIDDLE[:2], "fedsgd": HIGH[:2], "geometric": LOW[:2]}, "no?"),
        ({"fedcurv": LOW[:1], "fedsgd": LOW[:1]}, "no?"),
        ({"fedcurv": LOW}, "-"),
        ({"fedsgd": LOW, "geometric": LOW}, "-"),
    ],
    ids=[
        "better than both",
        "worse than one",
        "one within noise",
        "worse than one, within noise of the other",
        "better than the one that was run",
        "one seed, ahead",
        "two seeds, behind",
        "one seed, equal",
        "no rival was run",
        "the winner was not run",
    ],
)
@pytest.mark.parametrize("criterion", ["oracle", "validation", "last"])
def test_a_claim_is_found_where_the_winner_is_better_than_every_rival_beyond_noise(
    losses: dict[str, list[float]], answer: str, criterion: str
) -> None:
    assert judge(campaign(losses), [CLAIM])[CLAIM, criterion].verdict == answer


def test_the_table_has_the_papers_numbers_ours_and_an_answer_under_every_criterion() -> None:
    table = claims_table(campaign(), ("the size",))
    assert table is not None
    assert [column.title for column in table.columns[3:]] == ["ours (oracle)", "oracle", "validation", "last"]
    assert len(table.rows) == len(CLAIMS["color-mnist"])
    assert [cell.text for cell in table.rows[0]] == [
        "OOD loss",
        "fishr-inter-geo beats all others",
        "0.542, 0.552",
        "0.542, 0.552",
        *["yes (<.001)"] * 3,
    ]
    assert table.rows[8][1].text == "geometric beats fedsgd"
    assert [cell.text for cell in table.rows[8][2:4]] == ["0.562, 0.566", "0.566, 0.566"]
    assert [cell.text for cell in table.rows[8][4:]] == ["within noise (1.000)"] * 3
    assert table.rows[8][4].parts == ("within noise", "1", "1")
    assert table.notes[0] == "the size"
    assert "by Holm's method for the 36 different tests of this table" in table.notes[2]


def test_fairness_claims_are_scaled_as_in_the_paper() -> None:
    table = claims_table(campaign(name="rotated-cifar10", domains=NINE), ())
    assert table is not None
    rows = {(cells[0].text, cells[1].text): [cell.text for cell in cells[2:4]] for cells in table.rows}
    key = ("variance over sub-environments (×1000)", "fishr-inter-geo beats fedsgd")
    assert rows[key] == ["0.687, 0.809", "0.542, 0.566"]


def test_the_sub_environments_led_are_counted_and_only_among_the_papers_four() -> None:
    losses = {"fedsgd": [0.6], "fishr-intra-geo": [0.5], "geometric": [0.4]}
    for run, ours, answer in ((losses, "9 of 9", "yes?"), ({"fedsgd": [0.6]}, "-", "-")):
        table = claims_table(campaign(run, "rotated-cifar10", NINE), ())
        assert table is not None
        assert [cell.text for cell in table.rows[-1][2:5]] == ["7 of 9", ours, answer]
    behind = {"fedsgd": [0.4], "fishr-intra-geo": [0.5]}
    table = claims_table(campaign(behind, "rotated-cifar10", NINE), ())
    assert table is not None
    assert [cell.text for cell in table.rows[-1][3:]] == ["0 of 9", *["no?"] * 3]


def test_a_benchmark_that_is_not_the_papers_has_no_claims() -> None:
    assert claims_table(campaign(SIX, "color-digits"), ()) is None


def by_hand(one: Campaign, claim: Claim, criterion: str) -> float:
    """The p of a claim whose winner is ahead of all: the highest of scipy's paired tests."""
    ours = list(one.values(claim.winner, criterion, claim.metric).values())
    rivals = [list(one.values(rival, criterion, claim.metric).values()) for rival in claim.rivals]
    return max(float(ttest_rel(ours, values).pvalue) for values in rivals)


def test_the_verdicts_are_corrected_for_the_number_of_tests_and_say_where_that_changes_them() -> None:
    faint = {"fedsgd": [0.50, 0.52, 0.51, 0.50], "fedcurv": [0.49, 0.505, 0.505, 0.48]}
    one = campaign(faint)
    claim = Claim("test_loss", "fedcurv", ("fedsgd",), "")
    alone = judge(one, [claim])[claim, "oracle"]
    assert alone.p == pytest.approx(by_hand(one, claim, "oracle"))
    assert 0.01 < alone.p < 0.05
    assert alone.corrected == pytest.approx(3 * alone.p)
    assert alone.verdict == "yes, uncorrected"
    back = Claim("test_loss", "fedsgd", ("fedcurv",), "")
    assert judge(one, [back])[back, "oracle"].verdict == "no, uncorrected"


def test_criteria_that_choose_the_same_round_make_one_test() -> None:
    losses = {"fedsgd": [0.50, 0.52, 0.51, 0.50], "fedcurv": [0.49, 0.505, 0.505, 0.48]}
    rounds = {
        name: {seed: [{"round": 9, "test_loss": v, "validation_loss": v}] for seed, v in enumerate(values)}
        for name, values in losses.items()
    }
    one, claim = Campaign("color-mnist", rounds), Claim("test_loss", "fedcurv", ("fedsgd",), "")
    for criterion in ("oracle", "validation", "last"):
        found = judge(one, [claim])[claim, criterion]
        assert (found.verdict, found.corrected) == ("yes", found.p)


def test_a_rival_that_leads_must_do_so_beyond_the_noise_of_so_many_rivals() -> None:
    losses = {
        "fedcurv": [0.50, 0.52, 0.51, 0.50],
        "geometric": [0.49, 0.505, 0.505, 0.48],
        "fedsgd": HIGH * 2,
    }
    one = campaign({name: values[:4] for name, values in losses.items()})
    found = judge(one, [CLAIM])[CLAIM, "last"]
    claim = Claim("test_loss", "geometric", ("fedcurv",), "")
    assert found.p == pytest.approx(2 * by_hand(one, claim, "last"))
    assert found.verdict == "within noise"


def test_section_4_is_judged_by_the_scores_of_the_last_round_where_there_are_any() -> None:
    scores = {
        "fedsgd": [2.0, 2.2, 2.1, 2.3, 2.4],
        "geometric": [1.5, 1.71, 1.58, 1.83, 1.88],
        "fedcurv": [2.1, 2.1, 2.2, 2.2, 2.45],
    }
    at_last = {
        name: {seed: {"inconsistency_variance": value} for seed, value in enumerate(values)}
        for name, values in scores.items()
    }
    assert not set(claims_of(campaign())) & set(SECTION_4)
    one = replace(campaign(), at_last=at_last)
    table = claims_table(one, ())
    assert table is not None
    rows = {
        row[1].text: [cell.text for cell in row] for row in table.rows if row[0].text.startswith("incons")
    }
    assert set(rows) == {"geometric lowers that of fedsgd", "fedcurv lowers that of fedsgd"}
    assert rows["geometric lowers that of fedsgd"][2:6] == ["-", "1.700, 2.200", "-", "-"]
    assert rows["geometric lowers that of fedsgd"][6].startswith("yes (")
    assert rows["fedcurv lowers that of fedsgd"][6] == "within noise (1.000)"
