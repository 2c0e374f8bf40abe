"""An experiment of three silos, what `local` makes of it, and a provisioned deployment on the loopback."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from ports import free_port
from torch import Tensor

from fedilc import train
from fedilc.config import read_experiment
from fedilc.storage.files import read_tensors
from fedilc.storage.run_folder import RunFolder

SITES = ("site-1", "site-2", "site-3")
SILOS = ("flip-0.20", "flip-0.50", "flip-0.80")
EXPERIMENT = """
name = "tried"
rounds = 5
learning_rate = 0.01
penalty_weight = 5.0
environment_size = 32
device = "cpu"
[data]
source = "color-digits"
flips = [0.2, 0.5, 0.8]
[model]
hidden = [16]
"""
OWN_SILO = """
from pathlib import Path
from fedilc.config import read_experiment

def make_silo(name):
    settings, folder = read_experiment({path!r})
    return settings.data.store(settings.seed, folder).open(name)
"""
PATIENCE = 240.0


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment as a file, as a user has it."""
    path = tmp_path_factory.mktemp("experiment") / "tried.toml"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture(scope="session")
def locally(experiment: Path) -> Callable[..., dict[str, Tensor]]:
    """What `local` trains with an algorithm, for some rounds."""

    def trained(algorithm: str, rounds: int = 5, *changes: str) -> dict[str, Tensor]:
        given = [f"algorithm={algorithm}", f"rounds={rounds}", *changes]
        settings, folder = read_experiment(str(experiment), given)
        store = settings.data.store(settings.seed, folder)
        model = settings.model.build(store, settings.seed)
        result = train(store, model, algorithm, **settings.options())
        return {name: parameter.detach() for name, parameter in result.model.named_parameters()}

    return trained


def assert_same_weights(run: Path, expected: dict[str, Tensor], rounds: int) -> None:
    """That a run folder is complete and ends with these weights, to the bit."""
    assert [record["round"] for record in RunFolder(run).history()] == list(range(1, rounds + 1))
    found, about = read_tensors(run / "checkpoint.safetensors")
    assert about["round"] == rounds
    for name, weights in expected.items():
        assert torch.equal(found[f"weights.{name}"], weights), name


@pytest.fixture(scope="session")
def same_weights() -> Callable[[Path, dict[str, Tensor], int], None]:
    return assert_same_weights


@dataclass
class Deployment:
    """A server and three sites, provisioned with certificates of their own, as processes on this machine."""

    folder: Path
    experiment: Path
    home: Path
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def kits(self) -> Path:
        return self.folder / "poc" / "fedilc" / "prod_00"

    def provision(self) -> None:
        """Make the kits; two sites take their silo from the experiment, one from a function of its own."""
        from nvflare.tool.poc.poc_commands import prepare_poc_provision

        from fedilc.runtimes.nvflare.recipe import write_poc_project

        local: dict[str, dict[str, Any]] = {
            site: {"silo": silo, "experiment": str(self.experiment)}
            for site, silo in zip(SITES, SILOS, strict=True)
        }
        local[SITES[1]] = {"silo": SILOS[1], "provider": "own_silo:make_silo"}
        project = write_poc_project(self.folder, SITES, local, free_port())
        prepare_poc_provision([], len(SITES), str(self.folder / "poc"), "", project_conf_path=str(project))
        custom = self.kits / SITES[1] / "local" / "custom"
        custom.mkdir()
        (custom / "own_silo.py").write_text(OWN_SILO.format(path=str(self.experiment)))

    def start(self, name: str) -> None:
        """Start the server or a site, in a session of its own."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "HOME": str(self.home), "OMP_NUM_THREADS": "1"}
        own["NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT"] = "5"
        with (self.folder / f"{name}.log").open("ab") as log:
            self.started[name] = subprocess.Popen(
                ["bash", str(self.kits / name / "startup" / "sub_start.sh")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | own,
                start_new_session=True,
            )

    def processes(self, name: str) -> list[Any]:
        """Those of the server or a site, the one that starts the others first."""
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.started[name].pid)
            return [first, *first.children(recursive=True)]
        return []

    def kill(self, name: str, part: str = "") -> None:
        """Kill the processes whose command has `part`, as the kernel would: no goodbye."""
        import psutil

        found = []
        for process in self.processes(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                if part in " ".join(process.cmdline()):
                    process.kill()
                    found.append(process)
        assert found, f"{name} has no process {part!r}"
        self.started[name].poll()
        psutil.wait_procs(found, timeout=20)

    def stop(self) -> None:
        """End everything that was started."""
        for name, process in self.started.items():
            if self.processes(name):
                self.kill(name)
            process.wait(20)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def run_folder(self, out: str) -> Path:
        return self.kits / "server" / "fedilc-runs" / out

    @contextlib.contextmanager
    def admin(self) -> Iterator[Any]:
        """A session of the admin's, once the server answers."""
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        session = new_secure_session("admin@nvidia.com", str(self.kits / "admin@nvidia.com"), timeout=60)
        try:
            yield session
        finally:
            session.close()

    def wait_for_sites(self) -> None:
        """Until all sites are connected to the server."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(Exception), self.admin() as session:
                while time.monotonic() < deadline:
                    found = {client.name for client in session.get_system_info().client_info}
                    if found >= set(SITES):
                        return
                    time.sleep(0.5)
            time.sleep(0.5)
        raise AssertionError(f"the sites do not connect; the server said:\n{self.said('server')[-3000:]}")

    def outcome(self, session: Any, job: str) -> str:
        """How a job ends."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            status = str(session.get_job_status(job))
            if status.startswith("FINISHED"):
                return status
            time.sleep(0.5)
        raise AssertionError(f"job {job} does not end; the server said:\n{self.said('server')[-3000:]}")

    def wait_for_round(self, out: str, rounds: int) -> None:
        """Until that many rounds of a run are complete."""
        deadline = time.monotonic() + PATIENCE
        while len(RunFolder(self.run_folder(out)).history()) < rounds:
            assert time.monotonic() < deadline, f"{out} does not go on:\n{self.said('server')[-3000:]}"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, experiment: Path) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployment")
    home = folder / "home"
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        made = Deployment(folder, experiment, home)
        made.provision()
        try:
            for name in ("server", *SITES):
                made.start(name)
            made.wait_for_sites()
            yield made
        finally:
            made.stop()
