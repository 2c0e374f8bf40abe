"""`FedILCRecipe`: an experiment as an NVIDIA FLARE job, for the simulator, a proof of concept, or sites."""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.job_config.api import FedJob
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from fedilc.algorithms import PAPER
from fedilc.config import Experiment, read_experiment
from fedilc.config.sources import Eicu, Files, Remote
from fedilc.errors import ConfigError, FedILCWarning
from fedilc.runtimes.nvflare.controller import FedILCController
from fedilc.runtimes.nvflare.executor import SiloExecutor
from fedilc.runtimes.nvflare.local_config import VARIABLE
from fedilc.runtimes.nvflare.proof import project_file
from fedilc.runtimes.nvflare.server_job import require_inside
from fedilc.runtimes.nvflare.site import TASKS
from fedilc.runtimes.nvflare.startup_kits import allow_fedilc
from fedilc.runtimes.remote.builders import refuse_thousands
from fedilc.runtimes.remote.manifest import Wire, find_wire

POLL_SECONDS = 0.02
RUNS = Path("runs")


class FedILCRecipe(Recipe):  # type: ignore[misc]  # untyped nvflare: its class is Any
    """Trains an experiment over the sites of a federation, one silo a site.

    In the simulator and in a proof of concept, sites are given the experiment's own silos; real sites say
    in their `local/fedilc.json` which silo they are.

    Args:
        experiment: a shipped experiment's name, or a TOML file.
        min_clients: how many sites a job needs to start and a round to go on; None is as the experiment
            says, or all its silos.
        algorithm: in place of the experiment's own; "all" trains with each, one after another.
        changes: `key=value` changes of the experiment's settings.
        out: the run's folder in the simulator; elsewhere its name below the server's folder of runs. A run
            that is there goes on.
        timeout: seconds that a site has for each task.
        join_timeout: seconds that a site has to load its examples when the job begins.
        wire: "exact", or "float16" for half the bytes.
    """

    def __init__(
        self,
        experiment: str | os.PathLike[str],
        min_clients: int | None = None,
        *,
        algorithm: str | None = None,
        changes: Sequence[str] = (),
        out: str | os.PathLike[str] | None = None,
        timeout: int = 600,
        join_timeout: int = 600,
        wire: Wire = "exact",
    ) -> None:
        self.every = algorithm == "all"
        short = {"min_silos": min_clients, "algorithm": None if self.every else algorithm}
        given = [f"{key}={value}" for key, value in short.items() if value is not None]
        self.settings, self.folder = read_experiment(os.fspath(experiment), [*changes, *given])
        for key, value in {"timeout": timeout, "join_timeout": join_timeout}.items():
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{key}={value!r} is not a whole number of seconds; give at least 1")
        self.silos = _silos(self.settings, self.folder)
        self.needed = self.settings.min_silos or self.settings.silos_per_round or len(self.silos)
        if self.needed > len(self.silos):
            raise ConfigError(f"min_silos={self.needed} is more than the {len(self.silos)} silos there are")
        self.out = None if out is None else Path(out)
        label = "all" if self.every else self.settings.algorithm
        default = f"{self.settings.name}/{label}-seed{self.settings.seed}"
        self.run_name = default if self.out is None else self.out.as_posix()
        self.controllers = {
            name: FedILCController({}, "", timeout, join_timeout, find_wire(wire))
            for name in (PAPER if self.every else [label])
        }
        self._settle(self.run_name, anchored=False)
        self.executor = SiloExecutor()
        super().__init__(self._job_of(label))
        self.add_server_config({"server": {"task_request_interval": POLL_SECONDS}})
        self.add_client_config({"default_task_fetch_interval": POLL_SECONDS})

    def _job_of(self, algorithm: str) -> FedJob:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", f"fedilc-{self.settings.name}-{algorithm}")
        job = FedJob(name=name, min_clients=self.needed)
        job.set_app_packages(["fedilc"])
        for controller in self.controllers.values():
            job.to_server(controller)
        job.to_clients(self.executor, tasks=list(TASKS))
        return job

    def process_env(self, env: ExecEnv) -> None:
        """Where there are no real sites, say which silo each one is."""
        if isinstance(env, SimEnv):
            self._simulate(env)
            return
        self._for_sites()
        if isinstance(env, PocEnv):
            self._prove(env)

    def _for_sites(self) -> None:
        """Let the job hold nothing of this machine."""
        require_inside(self.run_name)
        self.executor.simulated = None
        self._settle(self.run_name, anchored=False)

    def export(self, job_dir: str, *parameters: Any, **more: Any) -> None:
        """Write the job for sites that say themselves which silo they are, whatever `env` a script has."""
        self._for_sites()
        super().export(job_dir, *parameters, **(more | {"env": None}))

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write the job's folder into a folder, for an admin to submit; returns it."""
        if isinstance(self.settings.data, Files):
            warnings.warn(
                f"the server will look for the silos' files ({_named(self.settings.data)}) in its own local "
                'folder; if they are at the sites, give the experiment source = "remote" and their names',
                FedILCWarning,
                stacklevel=2,
            )
        try:
            self.export(os.fspath(folder))
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"the job cannot be written into {folder}: {error}") from error
        return Path(folder) / str(self._job.name)

    def _simulate(self, env: SimEnv) -> None:
        sites = _site_names(env)
        if VARIABLE in os.environ:
            os.environ[VARIABLE] = str(Path(os.environ[VARIABLE]).absolute())
        if env.num_threads < len(sites):
            raise ConfigError(
                f"{len(sites)} simulated sites share {env.num_threads} threads, and a silo must stay in its "
                "process; give as many threads as sites"
            )
        self.executor.simulated = self._trial(sites)
        self._settle(str((self.out or RUNS / self.run_name).absolute()), anchored=True)
        allow_fedilc(Path(env.workspace_root) / self._job.name / "local", DEFAULT_CLASS_ALLOW_LIST)

    def _prove(self, env: PocEnv) -> None:
        if env.project_conf_path:
            return
        sites = _site_names(env)
        self._settle(self.run_name, anchored=True)
        local = self._trial(sites) | {"server": {"runs": str(RUNS.absolute())}}
        self._project = tempfile.TemporaryDirectory(prefix="fedilc-poc-")
        env.project_conf_path = str(project_file(Path(self._project.name), sites, local))

    def _trial(self, sites: list[str]) -> dict[str, dict[str, Any]]:
        """What each site would say of itself: the experiment's silo of its name, or else by order."""
        if isinstance(self.settings.data, Remote) and VARIABLE not in os.environ:
            raise ConfigError(
                "the silos of this experiment are elsewhere; to try it here, name a file in the environment "
                f"variable {VARIABLE} that says where their examples come from, as docs/nvflare.md shows"
            )
        dotted = [site for site in sites if "." in site]
        if dotted:
            raise ConfigError(
                f"NVIDIA FLARE takes no site with a dot in its name, as {dotted[0]!r} has; give "
                f"num_clients={len(self.silos)} instead, and sites are the silos in order"
            )
        by_name = set(sites) <= set(self.silos)
        if not by_name and (isinstance(self.settings.data, Remote) or len(sites) != len(self.silos)):
            raise ConfigError(
                f"the {len(sites)} sites {', '.join(sites[:20])} do not stand for the {len(self.silos)} "
                f"silos; give one for each, or call them as silos are called: {', '.join(self.silos[:20])}"
            )
        silos = sites if by_name else self.silos
        told = {"experiment": _anchored(self.settings, self.folder), "device": self.settings.device}
        return {site: {"silo": silo, **told} for site, silo in zip(sites, silos, strict=True)}

    def _settle(self, out: str, anchored: bool) -> None:
        """Tell the server's side where the run is, and whether files are those of this machine."""
        values = _anchored(self.settings, self.folder) if anchored else _plain(self.settings)
        for name, controller in self.controllers.items():
            controller.out = f"{out}/{name}" if self.every else out
            controller.experiment = values | {"algorithm": name}


def _named(data: Files) -> str:
    return data.silos if isinstance(data.silos, str) else ", ".join(map(str, list(data.silos.values())[:3]))


def _plain(settings: Experiment) -> dict[str, Any]:
    return settings.model_dump(mode="json", exclude={"summary"})


def _anchored(settings: Experiment, folder: Path) -> dict[str, Any]:
    """The settings, with absolute paths for the files that are given relative to the experiment's folder."""
    values = _plain(settings)
    data = values["data"]
    if isinstance(settings.data, Files | Remote) and data["test"] is not None:
        data["test"] = str((folder / data["test"]).absolute())
    if isinstance(settings.data, Eicu) and (folder / data["file"]).is_file():
        data["file"] = str((folder / data["file"]).absolute())
    if isinstance(settings.data, Files):
        given = data["silos"]
        data["silos"] = (
            str((folder / given).absolute())
            if isinstance(given, str)
            else {name: str((folder / file).absolute()) for name, file in given.items()}
        )
    return values


def _site_names(env: SimEnv | PocEnv) -> list[str]:
    return list(env.clients or [f"site-{number + 1}" for number in range(env.num_clients)])


def _silos(settings: Experiment, folder: Path) -> tuple[str, ...]:
    refuse_thousands(settings.data, "NVIDIA FLARE needs a site")
    if isinstance(settings.data, Remote):
        return tuple(settings.data.silos)
    return settings.data.store(settings.seed, folder).silos
