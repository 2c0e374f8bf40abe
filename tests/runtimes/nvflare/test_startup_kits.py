"""The project that docs/tutorials/nvflare.md shows makes kits for the experiment beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedilc.config import read_experiment
from fedilc.data.sources import Remote

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'fedilc[nvflare]'")
SHOWN = Path(__file__).parents[3] / "docs" / "deploy"


def test_the_shown_project_makes_kits_that_allow_our_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tool = Path(sys.executable).with_name("nvflare")
    command = [str(tool), "provision", "-p", str(SHOWN / "project.yml"), "-w", "kits"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    settings, _ = read_experiment(str(SHOWN / "hospitals.toml"))
    assert isinstance(settings.data, Remote)
    for name in ("server", *settings.data.silos):
        kit = tmp_path / "kits" / "hospitals" / "prod_00" / name
        resources = json.loads((kit / "local" / "resources.json.default").read_text())
        assert "fedilc.runtimes.nvflare." in resources["class_allow_list"]
        assert (kit / "startup" / "rootCA.pem").exists()
    dialled = json.loads((kit / "startup" / "fed_client.json").read_text())["servers"][0]["service"]
    assert dialled["target"] == "fl.university.example.org:8002"
