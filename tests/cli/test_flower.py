"""`fedilc flower new` says how to continue."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from command import fedilc


def test_the_command_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = fedilc("flower", "new", "app")
    assert "fill in make_silo in app/client_app.py" in said
    assert 'flwr run app --stream --federation-config "num-supernodes=5 client-resources-num-cpus=1"' in said
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"]["out"] == str(tmp_path / "runs" / "app")
