"""A site joins with its own silo, and no other, and believes only its own process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedilc.config import read_experiment
from fedilc.runtimes.nvflare.executor import SiteConfig, read_config
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.run import RemoteRun

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'fedilc[nvflare]'")

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedilc.runtimes.nvflare.executor import JOIN, Site, is_simulated


def test_no_job_makes_a_site_believe_that_it_is_simulated() -> None:
    context = FLContext()
    context.set_prop(FLContextKey.CURRENT_RUN, "simulate_job", private=False, sticky=True)
    context.set_prop(FLContextKey.CURRENT_JOB_ID, "simulate_job", private=False, sticky=True)
    assert context.get_job_id() == "simulate_job"
    assert not is_simulated(context)


def written(folder: Path, values: object) -> Path:
    (folder / "fedilc.json").write_text(values if isinstance(values, str) else json.dumps(values))
    return folder


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


def test_files_are_relative_to_the_folder_that_the_site_names(tmp_path: Path) -> None:
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").write_text("a,b,label\n1,2,0\n2,1,1\n")
    manifest = manifest_of(tmp_path, ["a", "b"])
    data = {"source": "files", "silos": "*.csv", "validation_share": 0.0}
    experiment = {"name": "wards", "rounds": 2, "learning_rate": 0.1, "data": data}
    for source in ({"data": "south.csv", "validation_share": 0.0}, {"experiment": experiment}):
        config = SiteConfig.model_validate({"folder": str(tmp_path), **source})
        member = Site("south", config, Path("elsewhere"), print)
        member.execute(JOIN, manifest.model_dump_json().encode())
        assert member.joined is not None
        assert member.joined[1].silo.x.tolist() == [[1.0, 2.0], [2.0, 1.0]]


def test_a_site_of_another_name_does_not_join(tmp_path: Path) -> None:
    (tmp_path / "patients.csv").write_text("a,b,label\n1,2,0\n2,1,1\n")
    member = Site("east", SiteConfig(data="patients.csv"), tmp_path, print)
    manifest = manifest_of(tmp_path, ["a", "b"])
    with pytest.raises(Exception, match="has no silo 'east'; its silos are north, south"):
        member.execute(JOIN, json.dumps(manifest.model_dump(mode="json")).encode())
