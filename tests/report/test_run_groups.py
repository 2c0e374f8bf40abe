"""Run folders that share their data are a group; those that differ by seed alone are a method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from html_pages import Page

from fedilc import Federation, Silo, train
from fedilc.report.html.report import write_html_report
from fedilc.report.run_tables import RunGroup, StoredRun, run_groups


def trained(out: Path, x: float = 1.0, **settings: Any) -> None:
    silos = [Silo(name, torch.full((4, 2), x), [0, 1, 0, 1]) for name in "ab"]
    usual: dict[str, Any] = {"rounds": 1, "learning_rate": 0.1, "out": out}
    train(Federation("f", silos), torch.nn.Linear(2, 1), "fedsgd", **(usual | settings))


def test_other_settings_are_another_method_and_other_data_another_part(tmp_path: Path) -> None:
    trained(tmp_path / "one")
    trained(tmp_path / "two", learning_rate=0.2)
    trained(tmp_path / "again")
    trained(tmp_path / "elsewhere", 2.0)
    places = [tmp_path / name for name in ("one", "two", "again", "elsewhere")]
    first, second = run_groups(places)
    assert list(first.methods) == [
        "fedsgd, learning_rate 0.1",
        "fedsgd, learning_rate 0.2",
        "fedsgd, learning_rate 0.1, run 2",
    ]
    assert (second.name, list(second.methods)) == ("f, data 2", ["fedsgd"])
    write_html_report(tmp_path / "report.html", places)
    said = Page((tmp_path / "report.html").read_text()).all("p")
    assert any("there is nothing else to compare by" in sentence for sentence in said)


def test_seeds_of_one_federation_are_one_method_and_the_title_names_them(tmp_path: Path) -> None:
    for seed in (1, 0):
        trained(tmp_path / f"run-{seed}", seed=seed)
    trained(tmp_path / "begun")
    (tmp_path / "begun" / "history.jsonl").unlink()
    (group,) = run_groups([tmp_path / name for name in ("run-1", "run-0", "begun")])
    assert {method: list(seeds) for method, seeds in group.methods.items()} == {"fedsgd": [1, 0]}
    assert group.title == "f · seeds 0, 1"
    assert list(group.histories) == ["run-1", "run-0"]


def stored(folder: str, seed: int, digest: str) -> StoredRun:
    settings = {"algorithm": "fedsgd", "seed": seed, "silos": {"a": {"digest": digest}}}
    return StoredRun(Path(folder), settings, [{"round": 1}], [])


def test_runs_in_folders_of_one_name_are_told_apart_by_their_paths() -> None:
    runs = {0: stored("x/run", 0, "1"), 1: stored("y/run", 1, "1"), 2: stored("z/other", 2, "1")}
    group = RunGroup("f", {"fedsgd": runs})
    assert list(group.histories) == ["x/run", "y/run", "other"]
    assert group.title == "f · seeds 0, 1, 2"
    assert RunGroup("f", {"fedsgd": {0: runs[0]}}).title == "f · seed 0"


@pytest.mark.parametrize(("seeds", "groups"), [((0, 1), 1), ((0, 0), 2)])
def test_an_experiment_may_draw_other_examples_by_another_seed_but_not_by_the_same(
    tmp_path: Path, seeds: tuple[int, int], groups: int
) -> None:
    for number, seed in enumerate(seeds):
        trained(tmp_path / str(number), float(number), seed=seed, settings={"experiment": "mine"})
    found = run_groups([tmp_path / "0", tmp_path / "1"])
    assert [group.name for group in found] == ["mine", "mine, data 2"][:groups]
