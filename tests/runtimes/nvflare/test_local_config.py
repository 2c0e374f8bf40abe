"""What a site says of itself is its own file, and what is wrong with it is said in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedilc.config import read_experiment
from fedilc.errors import ConfigError, DataError
from fedilc.runtimes.nvflare.local_config import ServerConfig, SiteConfig, read_config
from fedilc.runtimes.nvflare.site import JOIN, Site
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.run import RemoteRun


def written(folder: Path, values: object) -> Path:
    (folder / "fedilc.json").write_text(values if isinstance(values, str) else json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "give the silo's examples by one of provider, data and experiment"),
        ({"data": "a.csv", "provider": "m:f"}, "give the silo's examples by one of provider, data"),
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
        ConfigError, match=r"fedilc\.json does not exist; write into it where this site's examples"
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
        Site("north", config, tmp_path, print)


def manifest_of(tmp_path: Path, columns: list[str]) -> Manifest:
    """The manifest of a run whose silos are elsewhere."""
    (tmp_path / "hospitals.toml").write_text(
        "rounds = 2\nlearning_rate = 0.1\n[data]\nsource = 'remote'\nsilos = ['north', 'south']\n"
        f"inputs = [{len(columns)}]\ncolumns = {json.dumps(columns)}\n[model]\nhidden = [4]\n"
    )
    settings, folder = read_experiment(str(tmp_path / "hospitals.toml"))
    return RemoteRun.of(settings, folder).manifest


def test_a_site_brings_its_table_with_the_columns_in_the_order_of_the_run(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 2)).round(3)
    lines = ["b,died,a", *(f"{row[0]},{number % 2},{row[1]}" for number, row in enumerate(rows))]
    (tmp_path / "patients.csv").write_text("\n".join(lines) + "\n")
    values = {"silo": "south", "data": "patients.csv", "label": "died", "validation_share": 0.0}
    member = Site("hospital-7", read_config(SiteConfig, written(tmp_path, values)), tmp_path, print)
    manifest = manifest_of(tmp_path, ["a", "b"])
    answer = json.loads(member.execute(JOIN, json.dumps(manifest.model_dump(mode="json")).encode()))
    assert answer == {"silo": "south", "manifest": manifest.hash}
    assert member.joined is not None
    np.testing.assert_allclose(member.joined[1].silo.x.numpy(), rows[:, ::-1], rtol=1e-6)


def test_a_site_of_another_name_does_not_join(tmp_path: Path) -> None:
    (tmp_path / "patients.csv").write_text("a,b,label\n1,2,0\n2,1,1\n")
    member = Site("east", SiteConfig(data="patients.csv"), tmp_path, print)
    manifest = manifest_of(tmp_path, ["a", "b"])
    with pytest.raises(Exception, match="has no silo 'east', only north, south"):
        member.execute(JOIN, json.dumps(manifest.model_dump(mode="json")).encode())
