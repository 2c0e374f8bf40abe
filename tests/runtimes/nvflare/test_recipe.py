"""The job that a recipe makes: what it holds, what sites must allow, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedilc.errors import ConfigError

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'fedilc[nvflare]'")

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.recipe import SimEnv

from fedilc.runtimes.nvflare import FedILCRecipe
from fedilc.runtimes.nvflare.recipe import ALLOWED, allow_fedilc

REMOTE = """
rounds = 2
learning_rate = 0.1
[data]
source = "remote"
silos = ["north", "south"]
inputs = [3]
test = "test.csv"
"""


def configured(folder: Path, side: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "app" / "config" / f"config_fed_{side}.json").read_text())
    return found


def test_a_job_holds_settings_and_no_code_and_names_no_data_of_a_site(
    experiment: Path, tmp_path: Path
) -> None:
    folder = FedILCRecipe(experiment, 2, algorithm="geometric", timeout=7).write(tmp_path / "jobs")
    assert folder == tmp_path / "jobs" / "fedilc-tried-geometric"
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        "config_fed_client.json",
        "config_fed_server.json",
        "meta.json",
    ]
    assert json.loads((folder / "meta.json").read_text())["min_clients"] == 2
    client, server = configured(folder, "client"), configured(folder, "server")
    (executor,) = client["executors"]
    assert executor["executor"] == {"path": "fedilc.runtimes.nvflare.executor.SiloExecutor", "args": {}}
    (workflow,) = server["workflows"]
    arguments = workflow["args"]
    assert (arguments["timeout"], arguments["out"]) == (7, "tried/geometric-seed0")
    assert arguments["experiment"]["min_silos"] == 2
    assert arguments["experiment"]["algorithm"] == "geometric"


def test_the_settings_that_make_rounds_fast_are_set(experiment: Path, tmp_path: Path) -> None:
    folder = FedILCRecipe(experiment).write(tmp_path)
    assert configured(folder, "server")["server"]["task_request_interval"] == 0.02
    assert configured(folder, "client")["default_task_fetch_interval"] == 0.02


def test_all_algorithms_are_workflows_of_one_job(experiment: Path, tmp_path: Path) -> None:
    server = configured(FedILCRecipe(experiment, algorithm="all", out="six").write(tmp_path), "server")
    places = [workflow["args"]["out"] for workflow in server["workflows"]]
    assert places == [f"six/{w['args']['experiment']['algorithm']}" for w in server["workflows"]]
    assert len(set(places)) == 6


def test_files_are_those_of_the_server_in_a_job_and_of_this_machine_in_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hospitals.toml").write_text(REMOTE)
    monkeypatch.setenv("FEDILC_SITE_CONFIG", str(tmp_path / "mine.json"))
    recipe = FedILCRecipe(tmp_path / "hospitals.toml")
    recipe.process_env(SimEnv(clients=["north", "south"], workspace_root=str(tmp_path / "workspace")))
    (controller,) = recipe.controllers.values()
    assert controller.folder == str(tmp_path)
    assert controller.out == str(Path("runs/hospitals/fishr-inter-geo-seed0").absolute())
    arguments = configured(recipe.write(tmp_path / "jobs"), "server")["workflows"][0]["args"]
    assert arguments["experiment"]["data"]["test"] == "test.csv"
    assert arguments.get("folder") is None
    assert arguments["out"] == "hospitals/fishr-inter-geo-seed0"


@pytest.fixture
def wards(tmp_path: Path) -> Path:
    """An experiment of three files, called as a site may be."""
    for name in ("east", "north", "south"):
        (tmp_path / f"{name}.csv").write_text("age,label\n60,0\n70,1\n50,0\n80,1\n")
    data = '[data]\nsource = "files"\nsilos = "*.csv"\n[model]\nhidden = [4]\n'
    path = tmp_path / "wards.toml"
    path.write_text(f'rounds = 1\nlearning_rate = 0.1\ndevice = "cpu"\n{data}')
    return path


@pytest.mark.parametrize(
    ("clients", "silos"),
    [(["site-1", "site-2", "site-3"], ["east", "north", "south"]), (["south", "east"], ["south", "east"])],
)
def test_simulated_sites_are_silos_by_name_or_else_by_order(
    clients: list[str], silos: list[str], wards: Path, tmp_path: Path
) -> None:
    recipe = FedILCRecipe(wards, 2)
    recipe.process_env(SimEnv(clients=clients, workspace_root=str(tmp_path)))
    assert recipe.executor.simulated is not None
    assert [recipe.executor.simulated[site]["silo"] for site in clients] == silos
    assert {config["device"] for config in recipe.executor.simulated.values()} == {"cpu"}


def test_after_a_simulation_and_with_its_environment_a_job_for_sites_holds_nothing_of_this_machine(
    experiment: Path, tmp_path: Path
) -> None:
    recipe = FedILCRecipe(experiment)
    here = SimEnv(num_clients=3, workspace_root=str(tmp_path / "workspace"))
    recipe.process_env(here)
    recipe.export(str(tmp_path / "jobs"), env=here)
    written = "".join(path.read_text() for path in (tmp_path / "jobs").rglob("*.json"))
    assert "tried/fishr-inter-geo-seed0" in written
    assert str(Path.cwd()) not in written
    assert str(tmp_path) not in written
    assert "flip-0.20" not in written


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"timeout": 0}, "timeout=0 is not a whole number of seconds"),
        ({"join_timeout": 1.5}, r"join_timeout=1\.5 is not a whole number of seconds"),
        ({"wire": "int8"}, "wire='int8' is unknown"),
        ({"min_clients": 4}, "min_silos=4 is more than the 3 silos there are"),
        ({"algorithm": "fedsdg"}, "did you mean 'fedsgd'"),
        ({"changes": ["secure=true"]}, "secure sums are for silos that join over HTTP"),
        ({"experiment": "many-silos"}, "has 10000 silos, and NVIDIA FLARE needs a site for each"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], sentence: str, experiment: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        FedILCRecipe(**{"experiment": experiment} | given)


def test_a_simulator_that_cannot_work_is_refused(experiment: Path, tmp_path: Path) -> None:
    recipe = FedILCRecipe(experiment)
    with pytest.raises(ConfigError, match="3 simulated sites share 1 threads"):
        recipe.process_env(SimEnv(num_clients=3, num_threads=1, workspace_root=str(tmp_path)))
    with pytest.raises(ConfigError, match="the 2 sites site-1, site-2 do not match the 3 silos"):
        recipe.process_env(SimEnv(num_clients=2, workspace_root=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"does not accept dots in the names of sites, such as 'flip-0\.20"):
        recipe.process_env(SimEnv(clients=["flip-0.20", "flip-0.50", "flip-0.80"]))
    (tmp_path / "hospitals.toml").write_text(REMOTE)
    with pytest.raises(ConfigError, match="the silos of this experiment are elsewhere"):
        FedILCRecipe(tmp_path / "hospitals.toml").process_env(SimEnv(num_clients=2))


def test_a_folder_outside_the_servers_runs_is_refused(experiment: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leads out of the server's folder of runs"):
        FedILCRecipe(experiment, out=tmp_path / "run").write(tmp_path)


def test_a_site_that_allows_our_prefix_allows_both_components(experiment: Path, tmp_path: Path) -> None:
    local = tmp_path / "local"
    allow_fedilc(local)
    allow_fedilc(local)
    resources = json.loads((local / "resources.json.default").read_text())
    assert resources["class_allow_list"] == [*DEFAULT_CLASS_ALLOW_LIST, ALLOWED]
    folder = FedILCRecipe(experiment).write(tmp_path)
    paths = [
        configured(folder, "client")["executors"][0]["executor"]["path"],
        configured(folder, "server")["workflows"][0]["path"],
    ]
    assert all(ComponentPathAuthorizer._path_matches_prefix(path, ALLOWED) for path in paths)
