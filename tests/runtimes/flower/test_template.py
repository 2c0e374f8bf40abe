"""`fedilc flower new`: an app folder, and nothing if it cannot work. Flower need not be installed for it."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import pytest
from command import Refusal

from fedilc.config import shipped_experiments
from fedilc.errors import ConfigError, DataError
from fedilc.runtimes.flower import require_flower
from fedilc.runtimes.flower.template import new_app

REMOTE = """
rounds = 3
learning_rate = 0.1

[data]
source = "remote"
silos = ["north", "south"]
inputs = [4]
test = "elsewhere.csv"
"""


@pytest.mark.parametrize("experiment", [name for name in shipped_experiments() if name != "many-silos"])
def test_every_shipped_experiment_becomes_an_app_without_any_data(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDILC_DATA", str(tmp_path / "empty"))
    silos = new_app(tmp_path / "my_app", experiment)
    project = tomllib.loads((tmp_path / "my_app" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-app"
    assert project["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "server_app:app",
        "clientapp": "client_app:app",
    }
    for side in ("server_app.py", "client_app.py"):
        text = (tmp_path / "my_app" / side).read_text()
        ast.parse(text)
        assert f'EXPERIMENT = "{experiment}"' in text
    assert f"num-supernodes={silos} " in (tmp_path / "my_app" / "README.md").read_text()
    assert silos > 1


def test_ten_thousand_nodes_are_not_promised(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="10000 silos, and Flower needs a node for each; use `fedilc run`"):
        new_app(tmp_path / "app", "many-silos")
    assert list(tmp_path.iterdir()) == []


def test_the_folder_one_is_in_becomes_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "my_app"
    here.mkdir()
    monkeypatch.chdir(here)
    new_app(Path(), "color-digits")
    assert tomllib.loads((here / "pyproject.toml").read_text())["project"]["name"] == "my-app"
    names = ["README.md", "client_app.py", "pyproject.toml", "server_app.py"]
    assert sorted(file.name for file in here.iterdir()) == names


def test_a_file_of_ones_own_goes_with_the_app_and_its_folder_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "hospitals.toml").write_text(REMOTE)
    assert new_app(tmp_path / "app", str(tmp_path / "hospitals.toml")) == 2
    assert (tmp_path / "app" / "hospitals.toml").read_text() == REMOTE
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert "hospitals.toml" in project["tool"]["flwr"]["app"]["fab-include"]
    assert (
        f'make_server_app(EXPERIMENT, folder="{tmp_path}")'
        in (tmp_path / "app" / "server_app.py").read_text()
    )


def test_silos_may_be_a_pattern_from_the_root_and_one_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").write_text("age,label\n1,0\n2,1\n")
    own = tmp_path / "own.toml"
    for pattern, silos in ((f"{tmp_path}/*.csv", 2), (f"{tmp_path}/*.parquet", 0)):
        own.write_text(f'rounds = 3\nlearning_rate = 0.1\n[data]\nsource = "files"\nsilos = "{pattern}"\n')
        if silos:
            assert new_app(tmp_path / "app", str(own)) == silos
        else:
            with pytest.raises(DataError, match="no file matches"):
                new_app(tmp_path / "other", str(own))


def test_secure_sums_are_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('secure = true\nrounds = 3\nlearning_rate = 0.1\n[data]\nsource = "color-digits"\n')
    with pytest.raises(ConfigError, match="secure sums are for silos that join over HTTP"):
        new_app(tmp_path / "app", str(own))


def test_a_folder_that_is_not_empty_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mine.txt").write_text("mine")
    assert refusal("flower", "new", "app") == "app exists and is not an empty folder; choose another one"
    assert [path.name for path in (tmp_path / "app").iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    assert new_app(tmp_path / "app", "color-digits") == 5
    assert {path.name for path in tmp_path.iterdir()} == {"app"}


def test_an_experiment_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'color-digits'"):
        new_app(tmp_path / "app", "color-digit")
    assert not (tmp_path / "app").exists()


def test_without_flower_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(ConfigError, match=r"run pip install 'fedilc\[flower\]'"):
        require_flower()
