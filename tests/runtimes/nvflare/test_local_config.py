"""What a site says of itself is its own file, and what is wrong with it is said in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedilc.errors import ConfigError, DataError
from fedilc.runtimes.nvflare.executor import ServerConfig, SiteConfig, read_config, require_inside


def written(folder: Path, values: object) -> Path:
    (folder / "fedilc.json").write_text(values if isinstance(values, str) else json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "name the silo's examples with exactly one of provider, data and experiment"),
        ({"data": "a.csv", "provider": "m:f"}, "name the silo's examples with exactly one of provider, data"),
        ({"dta": "a.csv"}, "the key 'dta' is unknown; did you mean 'data'"),
        ({"data": "a.csv", "validation_share": 2}, "validation_share=2 is not valid"),
        ("[1]", "is not a section"),
        ("{", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused(values: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fedilc\.json.*" + sentence):
        read_config(SiteConfig, written(tmp_path, values))


def test_a_site_without_a_file_is_told_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"fedilc\.json does not exist; create it and say where this site's examples"
    ):
        read_config(SiteConfig, tmp_path)


def test_the_environment_names_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, {"data": "in-the-kit.csv"})
    other = tmp_path / "mine.json"
    other.write_text(json.dumps({"data": "mine.csv"}))
    monkeypatch.setenv("FEDILC_SITE_CONFIG", str(other))
    assert read_config(SiteConfig, tmp_path).data == "mine.csv"
    assert read_config(ServerConfig, tmp_path / "nowhere", {}).runs == "fedilc-runs"
    other.unlink()
    with pytest.raises(ConfigError, match=r"mine\.json does not exist"):
        read_config(SiteConfig, tmp_path, {"data": "sent-by-somebody.csv"})


def test_a_table_that_is_not_there_is_said_before_any_task(tmp_path: Path) -> None:
    config = read_config(SiteConfig, written(tmp_path, {"data": "patients.csv"}))
    with pytest.raises(DataError, match=r"patients\.csv does not exist; name the file"):
        config.make_silo("north", tmp_path, print)


@pytest.mark.parametrize("out", ["/etc/run", "../run", "a/../../b", "", "."])
def test_a_job_cannot_name_a_folder_elsewhere_on_the_server(out: str) -> None:
    with pytest.raises(ConfigError, match="leads out of the server's folder of runs"):
        require_inside(out)
