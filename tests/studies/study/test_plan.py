"""The plan of a study: which runs, and which settings are chosen, without the held-out silo."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hospitals import ONE_CANDIDATE, hospitals, study_table
from torch import nn

from fedilc.errors import ConfigError, DataError
from fedilc.studies.study import plan as plan_module
from fedilc.studies.study import tasks
from fedilc.studies.study.choice import Choice
from fedilc.studies.study.comparators import POOLED
from fedilc.studies.study.fits import build_network
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.settings import StudySettings

RATES = {"learning_rates": (0.01, 0.1), "local_learning_rates": (0.1, 0.5)}


@pytest.mark.parametrize("sites", [4, 7, 20])
def test_no_run_that_scores_settings_for_a_silo_trains_on_it(sites: int, tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(sites, rows=8))
    for choose_by in ("silo", "validation"):
        plan = StudyPlan(data, StudySettings(choose_by=choose_by))
        assert sorted(name for group in plan.groups for name in group) == sorted(data.silos)
        for silo in data.silos:
            runs = [task for tasks in plan.choosing("fishr-inter-geo", plan.group_of(silo)) for task in tasks]
            assert all(silo not in task.training and len(task.training) >= 2 for task in runs)
            last = plan.final("fedavg", silo, Choice({}, 1, 0.0, {}))
            assert all(set(task.training) == set(data.silos) - {silo} for task in last)


def test_one_site_unknown_sites_and_unknown_algorithms_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has 1 silo"):
        StudyPlan(study_table(tmp_path, hospitals(1)), StudySettings())
    data = study_table(tmp_path, hospitals(3))
    with pytest.raises(ConfigError, match="'H9', which is no silo"):
        StudyPlan(data, StudySettings(hold_out=("H9",)))
    with pytest.raises(ConfigError, match="did you mean 'fedavg'"):
        StudyPlan(data, StudySettings(algorithms=("fedagv",)))
    with pytest.raises(ConfigError, match="needs three silos; choose by validation"):
        StudyPlan(study_table(tmp_path, hospitals(2)), StudySettings(choose_by="silo"))


def test_a_method_with_a_penalty_chooses_its_weight_too_and_local_steps_their_rate(tmp_path: Path) -> None:
    settings = StudySettings(**RATES, **ONE_CANDIDATE, penalty_weights=(1.0, 100.0))
    plan = StudyPlan(study_table(tmp_path, hospitals(4, rows=8)), settings)
    assert [one["learning_rate"] for one in plan.grid("fedsgd")] == [0.01, 0.1]
    assert plan.grid(POOLED) == plan.grid("fedsgd")
    assert [one["local_learning_rate"] for one in plan.grid("fedavg")] == [0.1, 0.5]
    pairs = {(one["learning_rate"], one["penalty_weight"]) for one in plan.grid("fishr-inter-geo")}
    assert pairs == {(rate, weight) for rate in (0.01, 0.1) for weight in (1.0, 100.0)}
    assert {one["environment_size"] for one in plan.grid("fishr-intra-geo")} == {32}


def test_a_site_is_cross_validated_in_as_many_folds_as_its_rarer_class_allows(tmp_path: Path) -> None:
    frame = hospitals(3, rows=40)
    parts = [frame.filter(pl.col("hospital") == "H0")]
    for name, positives in (("H1", 4), ("H2", 0)):
        died = pl.Series("died", ["yes"] * positives + ["no"] * (40 - positives))
        parts.append(frame.filter(pl.col("hospital") == name).with_columns(died))
    plan = StudyPlan(study_table(tmp_path, pl.concat(parts)), StudySettings())
    assert [plan.folds(site) for site in ("H0", "H1", "H2")] == [5, 4, 0]
    assert len(plan.alone("H1")) == 4
    assert plan.alone("H2") == []
    assert any("one class only" in note and "H2" in note for note in plan.notes())


def test_few_or_tiny_sites_are_said(tmp_path: Path) -> None:
    notes = StudyPlan(study_table(tmp_path, hospitals(3, rows=8)), StudySettings()).notes()
    assert any(note.startswith("3 sites are few") for note in notes)
    assert any(note.startswith("fewer than 20 examples") for note in notes)


def test_what_methods_share_is_chosen_in_order_and_not_as_a_product(tmp_path: Path) -> None:
    settings = StudySettings(networks=((), (8,)), network_decays=(0.0, 0.1), averages=("none", "ema"))
    plan = StudyPlan(study_table(tmp_path, hospitals(4)), settings)
    assert plan.steps[:2] == (("logistic",), ("fedsgd",))
    assert {name for step in plan.steps for name in step} == set(plan.methods)
    assert len(plan.grid("logistic")) == 2 * len(settings.weight_decays)
    assert len(plan.networks) == 5
    usual = plan.networks[0]
    assert all(sum(one[key] != usual[key] for key in usual) == 1 for one in plan.networks[1:])

    def chosen(**options: object) -> Choice:
        return Choice({"scaling": "robust", **options}, 3, 0.5, {})

    one = {"logistic": chosen(weight_decay=0.1)}
    assert plan.base(one) == {"scaling": "robust"}
    entries = plan.grid("fedsgd", plan.base(one))
    assert len(entries) == 5 * len(settings.learning_rates)
    assert {entry["scaling"] for entry in entries} == {"robust"}
    two = one | {"fedsgd": chosen(hidden=(), weight_decay=0.1, average="ema", learning_rate=0.03)}
    base = plan.base(two)
    assert base == {"scaling": "robust", "hidden": (), "weight_decay": 0.1, "average": "ema"}
    entries = plan.grid("geometric", base)
    assert len(entries) == len(settings.learning_rates)
    assert all(entry.items() >= base.items() for entry in entries)
    (task, *_), *_ = plan.choosing("geometric", 0, base)
    assert (task.hidden, task.scaling, task.options["average"]) == ((), "robust", "ema")
    assert not {"hidden", "scaling"} & set(task.options)


def test_a_geometric_mean_also_chooses_whether_the_network_is_linear(tmp_path: Path) -> None:
    plan = StudyPlan(study_table(tmp_path, hospitals(4)), StudySettings())
    shared = {"hidden": (32,), "weight_decay": 0.01, "average": "none"}
    chosen = {"fedsgd": Choice({"learning_rate": 0.03, **shared}, 3, 0.5, {})}
    base = plan.base(chosen) | {"scaling": "robust"}
    rates = len(plan.settings.learning_rates)
    entries = plan.grid("agreed-geometric", base)
    assert [entry["hidden"] for entry in entries] == [(32,)] * rates + [()] * rates
    assert all(entry["weight_decay"] == 0.01 and entry["scaling"] == "robust" for entry in entries)
    for name in ("fedavg", "fishr-inter-geo", "fishr-intra-geo"):
        assert {entry["hidden"] for entry in plan.grid(name, base)} == {(32,)}
    assert len(plan.grid("agreed-geometric", base | {"hidden": ()})) == rates


def test_a_linear_network_of_a_study_begins_at_zero() -> None:
    (layer,) = (one for one in build_network((), (5,), 1, 3).modules() if isinstance(one, nn.Linear))
    assert not layer.weight.any()
    assert not layer.bias.any()


def test_of_large_tables_settings_are_chosen_on_a_sample_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = study_table(tmp_path, hospitals(4, rows=50))
    usual = StudyPlan(data, StudySettings())
    assert usual.choosing_rows is None
    assert not any("at most" in note for note in usual.notes())
    monkeypatch.setattr(tasks, "LARGE_ROWS", 199)
    monkeypatch.setattr(plan_module, "CHOOSING_ROWS", 40)
    plan = StudyPlan(data, StudySettings())
    assert plan.choosing_rows == 40
    assert StudyPlan(data, StudySettings(choosing_rows=50)).choosing_rows is None  # which are all
    assert any("chosen on at most 40 rows of each site" in note for note in plan.notes())
    assert "fedavg takes 2 steps per round at every site, in place of epochs" in plan.notes()
    grid = plan.grid("fedavg")
    assert {entry["local_steps"] for entry in grid} == {2}
    assert all("local_steps" not in entry for entry in plan.grid("fishr-inter-geo"))
    for name in ("fedavg", "logistic", "pooled trees"):
        assert {task.rows for runs in plan.choosing(name, 0) for task in runs} == {40}
    assert {task.rows for task in (*plan.alone("H0"), *plan.alone_regression("H0"))} == {40}
    assert all(task.rows is None for task in plan.final("fedavg", "H0", Choice(grid[0], 1, 0.0, {})))
