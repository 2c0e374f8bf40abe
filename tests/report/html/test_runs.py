"""The part of the report on runs: its verdict, and the silos that do worst."""

from __future__ import annotations

from pathlib import Path

from html_pages import Page

from fedilc.report.html.runs import runs_part
from fedilc.report.run_tables import RunGroup, StoredRun


def test_a_verdict_that_the_last_round_turns_round_says_so() -> None:
    def run(*losses: tuple[float, float]) -> StoredRun:
        history = [
            {"round": n, "train_loss": 10.0 + n, "validation_loss": validation, "test_loss": test}
            for n, (validation, test) in enumerate(losses, 1)
        ]
        return StoredRun(Path(), {"algorithm": "x", "seed": 0, "silos": {}}, history, [])

    ahead, behind = run((0.2, 0.5), (0.3, 0.9)), run((0.2, 0.6), (0.4, 0.4))
    part = runs_part(RunGroup("shift", {"fedsgd": {0: ahead}, "mine": {0: behind}}))
    assert "fedsgd has the lowest loss of 2 methods: 0.500 (mine 0.600)" in part.verdict[0]
    assert part.verdict[2].endswith("at the last round, mine has the lowest loss: 0.400 (fedsgd 0.900).")
    figures = Page(dict(part.sections)["Curves"])
    assert {"1", "2"} <= set(figures.all("text"))
    assert "1.5" not in figures.all("text")
    worse = run((0.2, 0.6), (0.3, 0.95))
    part = runs_part(RunGroup("shift", {"fedsgd": {0: ahead}, "mine": {0: worse}}))
    assert not any("at the last round" in sentence for sentence in part.verdict)


def test_of_many_silos_the_worst_are_drawn_and_the_rest_is_counted(tmp_path: Path) -> None:
    numbers = {f"s{i}": {"validation_accuracy": 1 - i / 100, "validation_examples": 10} for i in range(30)}
    record = {"round": 1, "train_loss": 0.5, "validation_loss": 0.5, "silos": numbers}
    settings = {"algorithm": "fedsgd", "seed": 0, "silos": {name: {} for name in numbers}}
    part = runs_part(RunGroup("many", {"fedsgd": {0: StoredRun(tmp_path, settings, [record], [])}}))
    found = Page(dict(part.sections)["Each silo that was trained on"])
    assert found.all("caption") == [f"s{i}" for i in range(29, 5, -1)]
    assert found.all("p")[-1].endswith("6 more silos do better.")
    errors = {name: {"validation_rmse": i} for i, name in enumerate(numbers)}
    run = StoredRun(tmp_path, settings, [record | {"silos": errors}], [])
    found = Page(
        dict(runs_part(RunGroup("many", {"fedsgd": {0: run}})).sections)["Each silo that was trained on"]
    )
    assert found.all("caption")[0] == "s29"
    assert "value [range]" in found.all("th")


def test_a_silo_that_pointed_against_the_others_is_named_with_its_rounds_and_methods() -> None:
    def run(*against: dict[str, int]) -> StoredRun:
        history = [
            {"round": n, "train_loss": 0.5} | ({"against": found} if found else {})
            for n, found in enumerate(against, 1)
        ]
        return StoredRun(Path(), {"algorithm": "x", "seed": 0, "silos": {}}, history, [])

    methods = {
        "fedsgd": {0: run({"b": 10}, {"b": 11}, {})},
        "mine": {0: run({"b": 10})},
        "third": {0: run({})},
    }
    said = [
        sentence for sentence in runs_part(RunGroup("poisoned", methods)).verdict if "against" in sentence
    ]
    assert said == [
        "The updates of silo 'b' pointed against those of most other silos for up to 11 rounds in a row "
        "(fedsgd, mine): look at its data, and train once without it."
    ]


def test_what_secure_sums_hide_is_said() -> None:
    history = [{"round": 1, "train_loss": 0.5, "members": 5, "silos": {}, "without_penalty": "e was removed"}]
    stored = StoredRun(Path(), {"algorithm": "x", "seed": 0, "silos": {}}, history, [])
    (said,) = [s for s in runs_part(RunGroup("hidden", {"x": {0: stored}})).verdict if "Secure" in s]
    assert said.endswith("1 rounds went without the penalty, because a silo was removed.")
