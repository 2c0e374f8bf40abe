"""`fedilc reproduce`: a small campaign from the command to its tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Refusal, fedilc

SMALL = ("-a", "fedsgd", "--seeds", 1, "--rounds", 6, "--jobs", 1, "--set", "model.hidden=[8]")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("campaign")
    return out, fedilc("reproduce", "color-digits", *SMALL, "--out", out)


def test_the_command_says_what_is_smaller_than_in_the_paper_and_where_results_are(
    campaign: tuple[Path, str],
) -> None:
    out, printed = campaign
    assert printed.startswith("color-digits: 1 seed, 6 rounds")
    assert f"results: {out} (tables.md, " in printed
    for name in ("tables.md", "tables.tex", "summary.json", "history.csv", "figures/curves.png"):
        assert (out / name).stat().st_size > 0


def test_finished_runs_are_kept(campaign: tuple[Path, str]) -> None:
    out, printed = campaign
    assert "all runs: 6 of 6 rounds" in printed
    again = fedilc("reproduce", "color-digits", *SMALL, "--out", out)
    assert again == "".join(
        line for line in printed.splitlines(keepends=True) if not line.startswith("all runs: ")
    )


def test_mistakes_are_one_sentence(refusal: Refusal, tmp_path: Path) -> None:
    assert "did you mean 'color-mnist'" in refusal("reproduce", "colour-mnist")
    assert "did you mean 'fedsgd'" in refusal("reproduce", "color-digits", "-a", "fedsdg", "--out", tmp_path)
    assert list(tmp_path.iterdir()) == []
