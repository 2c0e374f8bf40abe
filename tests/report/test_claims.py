"""The paper's claims: true of its own numbers, and found, not found or within noise in ours."""

from __future__ import annotations

import pytest
from campaigns import SIX, campaign

from fedilc.evaluation.summary import lower_is_better
from fedilc.report.claims import CLAIMS, Claim, claims_table, found
from fedilc.report.paper import paper_numbers

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
    assert found(campaign(losses), CLAIM, criterion) == answer


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
        *["yes"] * 3,
    ]
    assert table.rows[8][1].text == "geometric beats fedsgd"
    assert [cell.text for cell in table.rows[8][2:4]] == ["0.562, 0.566", "0.566, 0.566"]
    assert [cell.text for cell in table.rows[8][4:]] == ["within noise"] * 3
    assert table.notes[0] == "the size"
    assert "paired t-test over seeds at p < 0.05" in table.notes[1]


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
