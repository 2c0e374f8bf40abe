"""A run over silos elsewhere is set up from an experiment, and logs its rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedilc.config import parse_experiment
from fedilc.errors import ConfigError
from fedilc.runtimes.remote.run import RemoteRun, RoundLog
from fedilc.training.callbacks import Run

BASE = {"name": "study", "rounds": 3, "learning_rate": 0.1, "model": {"name": "mlp", "hidden": [4]}}
REMOTE = {"source": "remote", "silos": ["a", "b", "c"], "inputs": [3], "columns": ["x", "y", "z"]}


def test_the_manifest_has_what_silos_need_and_nothing_is_read_from_them(tmp_path: Path) -> None:
    run = RemoteRun.of(parse_experiment(BASE | {"data": REMOTE, "min_silos": 2}), tmp_path)
    assert run.needed == 2
    assert run.manifest.silos == ["a", "b", "c"]
    assert run.manifest.columns == ["x", "y", "z"]
    assert run.manifest.model.inputs == [3]


def test_tables_at_the_silos_need_a_survey_first(tmp_path: Path) -> None:
    data = {"source": "remote-tables", "silos": ["a"], "label": "died"}
    with pytest.raises(ConfigError, match="starts with a survey"):
        RemoteRun.of(parse_experiment(BASE | {"data": data}), tmp_path)


def test_a_log_has_a_line_at_the_start_and_one_per_round(tmp_path: Path) -> None:
    lines: list[str] = []
    log, run = RoundLog(lines.append), Run(3, out=tmp_path)
    log.on_start(run)
    log.on_round(run, {"round": 1, "train_loss": 0.5, "validation_loss": None, "test_loss": 0.25})
    assert lines[0] == f"the run is in {tmp_path}"
    assert lines[1].startswith("round 1 of 3: train loss 0.5, OOD loss 0.25, ")
