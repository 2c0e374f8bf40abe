"""`fedilc nvflare export` writes a job folder, and says in one sentence what it cannot do."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedilc.cli.engines import nvflare_app
from fedilc.errors import ConfigError, FedILCWarning
from fedilc.runtimes import nvflare

needs_nvflare = pytest.mark.skipif(
    find_spec("nvflare") is None, reason="NVIDIA FLARE is not installed: pip install 'fedilc[nvflare]'"
)


@pytest.fixture
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment of three silos as a file."""
    path = tmp_path_factory.mktemp("experiment") / "tried.toml"
    data = '[data]\nsource = "color-digits"\nflips = [0.2, 0.5, 0.8]\n[model]\nhidden = [16]\n'
    path.write_text('name = "tried"\nrounds = 5\nlearning_rate = 0.01\n' + data)
    return path


@needs_nvflare
def test_export_says_where_the_job_is_and_where_the_run_will_be(experiment: Path, tmp_path: Path) -> None:
    words = ["export", str(experiment), str(tmp_path), "-a", "all", "--rounds", "3", "--min-clients", "2"]
    done = CliRunner().invoke(nvflare_app, words)
    assert done.exit_code == 0, done.output
    assert f"job folder: {tmp_path / 'fedilc-tried-all'}" in done.output
    assert "silos: flip-0.20, flip-0.50, flip-0.80 (at least 2 needed)" in done.output
    assert "fedilc-runs: tried/all-seed0" in done.output
    assert (tmp_path / "fedilc-tried-all" / "meta.json").exists()


@needs_nvflare
def test_export_says_that_files_of_silos_must_be_where_the_server_is(tmp_path: Path) -> None:
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").write_text("age,label\n60,0\n70,1\n50,0\n80,1\n")
    data = '[data]\nsource = "files"\nsilos = "*.csv"\n'
    (tmp_path / "mine.toml").write_text(f"rounds = 1\nlearning_rate = 0.1\n{data}[model]\nhidden = [4]\n")
    with pytest.warns(FedILCWarning, match=r"files \(\*\.csv\) in its own local folder; if they are at the"):
        done = CliRunner().invoke(
            nvflare_app, ["export", str(tmp_path / "mine.toml"), str(tmp_path / "jobs")]
        )
    assert done.exit_code == 0, done.output


@needs_nvflare
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--wire", "int8"], "wire='int8' is unknown"),
        (["--set", "rouns=3"], "the key 'rouns' is unknown; did you mean 'rounds'"),
        (["--out", "/elsewhere"], "leads out of the server's folder of runs"),
        (["-a", "fedmean"], "fedmean"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], sentence: str, experiment: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(nvflare_app, ["export", str(experiment), str(tmp_path), *words])
    assert isinstance(done.exception, ConfigError)
    assert sentence in str(done.exception)
    assert "\n" not in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@needs_nvflare
def test_a_folder_of_somebody_elses_is_not_replaced(experiment: Path, tmp_path: Path) -> None:
    other = tmp_path / "fedilc-tried-geometric"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    done = CliRunner().invoke(nvflare_app, ["export", str(experiment), str(tmp_path), "-a", "geometric"])
    assert isinstance(done.exception, ConfigError)
    assert (other / "thesis.txt").read_text() == "mine"


def test_without_nvflare_the_sentence_says_what_to_install(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvflare, "find_spec", lambda _name: None)
    done = CliRunner().invoke(nvflare_app, ["export", str(experiment), str(tmp_path)])
    assert isinstance(done.exception, ConfigError)
    assert "pip install 'fedilc[nvflare]'" in str(done.exception)
    with pytest.raises(ConfigError, match="NVIDIA FLARE is not installed"):
        _ = nvflare.FedILCRecipe
    with pytest.raises(AttributeError, match="no attribute 'Recipe'"):
        _ = nvflare.Recipe
