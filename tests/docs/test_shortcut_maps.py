"""The maps of shortcuts: trained as `train` does, and the page says what the cells show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.shortcut_maps import (
    AGREED,
    BOTH,
    LAYER,
    LOGISTIC,
    MAPS,
    OWN,
    PENALISED,
    SHARED,
    Method,
    Stack,
    gains,
    interval,
    network,
    read_rows,
    tables,
    trained,
    write_table,
)

from fedilc import Algorithm, train
from fedilc.studies.study.data import study_data
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.run import run_study
from fedilc.studies.study.settings import StudySettings

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "shortcut-maps"
ROWS = read_rows(RESULTS / "cells.csv")


@pytest.mark.parametrize("hidden", [0, 4])
@pytest.mark.parametrize("method", [*BOTH, PENALISED[1], PENALISED[4]], ids=lambda method: method.name)
def test_all_seeds_at_once_have_the_weights_of_train(method: Method, hidden: int) -> None:
    base = SHARED if method.penalty_weight else OWN
    cell = replace(base, sites=3, rows=40, hidden=hidden)
    seeds, rate, rounds = (0, 3), 0.05, 6
    *_, found = trained(Stack.of(cell, seeds), method, rate, rounds)
    penalty = "fishr" if method.penalty_weight else None
    parts = Algorithm(inter=method.inter, penalty=penalty, optimizer=method.server)
    for place, seed in enumerate(seeds):
        federation, _ = cell.federation(seed)
        model = network(cell, federation.inputs[0], seed)
        weight = {"penalty_weight": method.penalty_weight} if penalty else {}
        options = {"rounds": rounds, "learning_rate": rate, **method.options, **weight}
        result = train(federation, model, parts, outlier_factor=0, **options)
        for tensor, right in zip(found, result.model.parameters(), strict=True):
            # Batched matrix products round otherwise, and Adam's first steps magnify that near 0.
            torch.testing.assert_close(tensor[place], right.detach(), rtol=1e-3, atol=1e-4)


def test_the_tables_are_those_of_the_cells() -> None:
    assert (RESULTS / "table.md").read_text() == "\n".join(tables(ROWS)) + "\n"


def test_the_page_has_the_gains_of_the_cells() -> None:
    page = (ROOT / "docs" / "research" / "study-evidence.md").read_text()
    own = {cell: gains(ROWS, cell) for one in MAPS for cell in one.cells}
    for cell in (OWN, replace(OWN, hidden=32), SHARED, replace(OWN, strength=0.0)):
        for method in (AGREED, LAYER, BOTH[2], BOTH[-1], PENALISED[1]):
            if method.name in own[cell]:
                mean, width = interval(own[cell][method.name])
                assert f"{mean:+.3f} ± {width:.3f}" in page
        assert f"{interval(own[cell][LOGISTIC])[0]:.3f}" in page


@pytest.mark.slow
def test_a_study_of_sites_with_shortcuts_finds_the_method_by_itself(tmp_path: Path) -> None:
    write_table(tmp_path / "sites.csv", sites=8, rows=80)
    data = study_data([str(tmp_path / "sites.csv")], silo_column="site", label="label")
    settings = StudySettings(
        algorithms=("fedsgd", "agreed-geometric", "logistic"),
        hold_out=("site-1", "site-2", "site-3", "site-4"),
        weight_decays=(0.01, 0.1, 1.0),
        references=False,
        seeds=1,
        rounds=40,
        learning_rates=(0.01,),
        network_decays=(0.0,),
        averages=("none",),
        scalings=("moments",),
    )
    result = run_study(StudyPlan(data, settings), tmp_path / "out")
    assert list(result.chosen.values()).count("agreed-geometric") >= 3
    gained = []
    for name, site in result.sites.items():
        areas = [site.methods[method].scores["auroc"].value for method in (result.chosen[name], "logistic")]
        gained.append(areas[0] - areas[1])
    mean, width = interval(gained)
    assert mean - width > 0.02
