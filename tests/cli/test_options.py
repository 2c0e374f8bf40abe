"""Options that several commands share: the data folder, one algorithm only, settings without effect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fedilc.cli.options import as_changes, given_among, only_one, refuse_given, use_data_folder
from fedilc.config import read_experiment
from fedilc.data.download import data_folder
from fedilc.errors import ConfigError


def test_a_data_folder_that_is_given_holds_for_child_processes_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDILC_DATA", "before")
    monkeypatch.chdir(tmp_path)
    use_data_folder(Path("mine"))
    code = "from fedilc.data.download import data_folder; print(data_folder())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert child.stdout == f"{tmp_path / 'mine'}\n"


def test_without_the_option_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDILC_DATA", "before")
    use_data_folder(None)
    assert data_folder() == Path("before")


def test_a_second_algorithm_is_refused_and_not_dropped() -> None:
    with pytest.raises(ConfigError, match=r"^serve trains one algorithm, but --algorithm was given 3 times"):
        only_one(["fedsgd", "fedcurv", "fedsgd"], "serve")


def test_only_options_that_were_given_are_refused() -> None:
    refuse_given("--view only shows a run", {"--rounds": None, "--seed": None})
    with pytest.raises(ConfigError, match=r"^--view only shows a run; leave out --seed$"):
        refuse_given("--view only shows a run", {"--rounds": None, "--seed": 0})


def test_short_options_change_settings_as_set_does() -> None:
    changes = as_changes({"rounds": 3, "seed": None, "data.subset": 0.5})
    settings, _ = read_experiment("color-mnist", changes)
    assert (settings.rounds, settings.data.subset) == (3, 0.5)


def test_options_on_the_command_line_are_told_from_their_defaults() -> None:
    app, found = typer.Typer(), dict[str, object]()

    @app.command()
    def command(
        context: typer.Context, experiment: str = typer.Argument(), rounds: int = 3, wire: str = "exact"
    ) -> None:
        found.update(given_among({"the experiment", "--wire", "--rounds"}, context))

    assert CliRunner().invoke(app, ["digits", "--wire", "exact"]).exit_code == 0
    assert found == {"the experiment": "digits", "--wire": "exact"}
