"""`fedilc serve` with the section [study]: which files are studies, and what such a file may not hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Refusal
from remote_studies import HEART, write_study_file

from fedilc.cli.serve_study import read_remote_study
from fedilc.errors import ConfigError


def test_a_file_with_a_study_over_tables_of_silos_is_one(tmp_path: Path) -> None:
    file = write_study_file(tmp_path, ["a", "b"], HEART, {"rounds": 5})
    found = read_remote_study(str(file), ["study.seeds=2"])
    assert found is not None
    assert (found.name, found.source.silos, found.settings) == (
        "study",
        ["a", "b"],
        {"rounds": 5, "seeds": 2},
    )


def test_other_files_and_names_are_runs(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text('[data]\nsource = "color-digits"\n')
    assert read_remote_study(str(run)) is None
    assert read_remote_study("color-digits") is None


def test_a_study_of_tables_at_one_place_is_not_served(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('[study]\nrounds = 5\n[data]\nsource = "heart-disease"\n')
    with pytest.raises(ConfigError, match="do this one with `fedilc study`"):
        read_remote_study(str(file))


def test_other_engines_refuse_a_study_in_one_sentence(tmp_path: Path, refusal: Refusal) -> None:
    file, job = write_study_file(tmp_path, ["a", "b"], HEART, {"rounds": 5}), tmp_path / "job"
    for words in (("nvflare", "export", file, job), ("flower", "new", job, file)):
        assert "is a study over silos, which NVIDIA FLARE and Flower do not carry" in refusal(*words)
        assert not job.exists()
