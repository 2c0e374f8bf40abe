"""A sweep over lambda: its runs, what is said of them, and the records that each criterion chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedilc.errors import ConfigError
from fedilc.evaluation import select
from fedilc.federation import RunFolder
from fedilc.report.sweep_report import write_sweep
from fedilc.studies.jobs import run_jobs
from fedilc.studies.sweep import Sweep

TINY = ("rounds=2", "model.hidden=[4]", "data.flips=[0.2, 0.4]", "environment_size=100")


def test_a_run_per_value_and_seed_each_in_a_folder_of_its_own() -> None:
    sweep = Sweep.of("color-digits", "fishr-inter-geo", [0.0, 0.5], 2, ["rounds=3"], Path("there"))
    jobs = sweep.jobs()
    assert [(job.settings.seed, job.settings.penalty_weight) for job in jobs] == [
        (seed, value) for seed in (0, 1) for value in (0.0, 0.5)
    ]
    assert str(jobs[1].folder) == "there/runs/lambda-0.5/seed-0"
    assert len({job.folder for job in jobs}) == 4
    assert {job.settings.rounds for job in jobs} == {3}
    assert Sweep.of("color-digits", "fedcurv", [1.0], 1, [], None).out == Path("results/color-digits-lambda")


def test_the_title_warns_of_synthetic_data_and_the_note_says_the_size() -> None:
    sweep = Sweep.of("eicu-synthetic", "fedcurv", [1.0], 1, ["rounds=3", "evaluate_every=3"], None)
    assert sweep.title == "eicu-synthetic (SYNTHETIC DATA) · fedcurv"
    assert sweep.note.startswith("1 seed, 3 rounds, evaluated every 3 rounds; fishr_reduction=")


def test_an_algorithm_without_a_penalty_is_refused() -> None:
    with pytest.raises(ConfigError, match="fedsgd has no penalty, so lambda changes nothing"):
        Sweep.of("color-digits", "fedsgd", [0.0], 1, [], None)


@pytest.mark.slow
def test_a_sweep_shows_the_loss_against_lambda(tmp_path: Path) -> None:
    sweep = Sweep.of("color-digits", "fishr-inter-geo", [0.0, 10.0], 1, TINY, tmp_path)
    run_jobs(sweep.jobs(), 2)
    table = write_sweep(sweep)
    assert [row[0].text for row in table.rows] == ["0", "10"]
    assert (tmp_path / "lambda.png").exists()
    written = (tmp_path / "tables.md").read_text()
    assert '1 seed, 2 rounds; fishr_reduction="mean"' in written
    assert "Validation chooses lambda = " in written
    assert "nobody can know in practice" in written
    losses = [
        select(RunFolder(job.folder).history(), "validation")["validation_loss"] for job in sweep.jobs()
    ]
    assert [row[1].text for row in table.rows] == [f"{loss:.3f}" for loss in losses]
    assert [row[0].bold for row in table.rows] == [loss == min(losses) for loss in losses]
