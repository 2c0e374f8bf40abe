"""Make an NVIDIA FLARE job from an experiment, and start-up kits whose sites may run it."""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.job_config.api import FedJob
from nvflare.lighter.ctx import ProvisionContext
from nvflare.lighter.entity import Project
from nvflare.lighter.spec import Builder
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from fedilc.algorithms import PAPER
from fedilc.config import read_experiment
from fedilc.data.sources import Remote, Tables
from fedilc.errors import ConfigError, FedILCWarning
from fedilc.runtimes.nvflare.controller import FedILCController
from fedilc.runtimes.nvflare.executor import FILE, JOIN, STEP, VARIABLE, SiloExecutor, require_inside
from fedilc.runtimes.remote.manifest import Wire, find_wire
from fedilc.runtimes.remote.silo_client import refuse_many_silos
from fedilc.storage.files import write_atomically

ALLOWED = "fedilc.runtimes.nvflare."
ALLOW_LIST = "class_allow_list"
RESOURCES = ("resources.json", "resources.json.default")
ORGANISATION = "fedilc"
ADMIN = "admin@nvidia.com"
BUILDERS = "nvflare.lighter.impl"
POLL_SECONDS = 0.02
RUNS = Path("runs")


class FedILCRecipe(Recipe):  # type: ignore[misc]  # untyped nvflare: its class is Any
    """A job that trains an experiment over the sites of a federation, one silo per site.

    In the simulator and in a proof of concept, sites get the experiment's own silos; the `local/fedilc.json`
    of a real site says which silo it is.

    Args:
        experiment: a shipped experiment's name, or a TOML file.
        min_clients: how many sites a job needs to start and a round needs to complete; None takes the
            experiment's `min_silos`, or all its silos.
        algorithm: replaces the experiment's own; "all" trains each of the paper's, one after another.
        changes: `key=value` changes of the experiment's settings.
        out: the run folder in the simulator; elsewhere its name in the server's folder of runs. A run in that
            folder is continued.
        timeout: the time for each task of a site, in seconds.
        join_timeout: the time for a site to load its examples when the job starts, in seconds.
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
        self.all_algorithms = algorithm == "all"
        short = {"min_silos": min_clients, "algorithm": None if self.all_algorithms else algorithm}
        given = [f"{key}={value}" for key, value in short.items() if value is not None]
        self.settings, self.folder = read_experiment(os.fspath(experiment), [*changes, *given])
        self.settings.refuse_secure()
        for key, value in {"timeout": timeout, "join_timeout": join_timeout}.items():
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{key}={value!r} is not a whole number of seconds; give at least 1")
        data = self.settings.data
        refuse_many_silos(data, "NVIDIA FLARE needs a site")
        if isinstance(data, Remote):
            self.silos = tuple(data.silos)
        else:
            self.silos = data.store(self.settings.seed, self.folder).silos
        self.needed = self.settings.quorum(len(self.silos))
        if self.needed > len(self.silos):
            raise ConfigError(f"min_silos={self.needed} is more than the {len(self.silos)} silos there are")
        self.out = None if out is None else Path(out)
        label = "all" if self.all_algorithms else self.settings.algorithm
        default = Path(self.settings.name, f"{label}-seed{self.settings.seed}")
        self.run_name = (self.out or default).as_posix()
        values, limits = self.settings.model_dump(mode="json", exclude={"summary"}), (timeout, join_timeout)
        self.controllers = {
            name: FedILCController(values | {"algorithm": name}, "", None, *limits, find_wire(wire))
            for name in (PAPER if self.all_algorithms else [label])
        }
        self._configure(self.run_name)
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
        job.to_clients(self.executor, tasks=[JOIN, STEP])
        return job

    def process_env(self, env: ExecEnv) -> None:
        """Assign silos to sites, if the environment has no real sites."""
        if isinstance(env, SimEnv):
            self._prepare_simulator(env)
            return
        self._make_portable()
        if isinstance(env, PocEnv):
            self._prepare_poc(env)

    def _make_portable(self) -> None:
        """Remove everything about this machine from the job."""
        require_inside(self.run_name)
        self.executor.simulated = None
        self._configure(self.run_name)

    def export(self, job_dir: str, *parameters: Any, **more: Any) -> None:
        """Write the job for real sites, which say themselves which silo they are; ignore a script's `env`."""
        self._make_portable()
        super().export(job_dir, *parameters, **(more | {"env": None}))

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write the job's folder into a folder, for an admin to submit; return its path."""
        if isinstance(self.settings.data, Tables):
            given = self.settings.data.silos or self.settings.data.files or ()
            named = list(given.values()) if isinstance(given, dict) else given
            files = named if isinstance(named, str) else ", ".join(named[:3])
            warnings.warn(
                f"the server will look for the silos' files ({files}) in its own local folder; if they are "
                'at the sites, use source = "remote" and the silos\' names',
                FedILCWarning,
                stacklevel=2,
            )
        try:
            self.export(os.fspath(folder))
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"the job cannot be written into {folder}: {error}") from error
        return Path(folder) / str(self._job.name)

    def _prepare_simulator(self, env: SimEnv) -> None:
        sites = _site_names(env)
        if VARIABLE in os.environ:
            os.environ[VARIABLE] = str(Path(os.environ[VARIABLE]).absolute())
        if env.num_threads < len(sites):
            raise ConfigError(
                f"{len(sites)} simulated sites share {env.num_threads} threads, but a silo must stay in its "
                "process; give as many threads as sites"
            )
        self.executor.simulated = self._site_configs(sites)
        self._configure(str((self.out or RUNS / self.run_name).absolute()), self.folder)
        allow_fedilc(Path(env.workspace_root) / self._job.name / "local")

    def _prepare_poc(self, env: PocEnv) -> None:
        if env.project_conf_path:
            return
        sites = _site_names(env)
        self._configure(self.run_name, self.folder)
        local = self._site_configs(sites) | {"server": {"runs": str(RUNS.absolute())}}
        self._project = tempfile.TemporaryDirectory(prefix="fedilc-poc-")
        env.project_conf_path = str(write_poc_project(Path(self._project.name), sites, local))

    def _site_configs(self, sites: list[str]) -> dict[str, dict[str, Any]]:
        """Return the configuration of each site: the silo of the same name, or else the silos in order."""
        if isinstance(self.settings.data, Remote) and VARIABLE not in os.environ:
            raise ConfigError(
                "the silos of this experiment are elsewhere; to try it here, say in a file where their "
                "examples come from, as in docs/tutorials/nvflare.md, and name the file in the environment "
                f"variable {VARIABLE}"
            )
        dotted = [site for site in sites if "." in site]
        if dotted:
            raise ConfigError(
                f"NVIDIA FLARE does not accept dots in the names of sites, such as {dotted[0]!r}; give "
                f"num_clients={len(self.silos)} instead, and the sites are the silos in order"
            )
        by_name = set(sites) <= set(self.silos)
        if not by_name and (isinstance(self.settings.data, Remote) or len(sites) != len(self.silos)):
            raise ConfigError(
                f"the {len(sites)} sites {', '.join(sites[:20])} do not match the {len(self.silos)} silos; "
                f"give one site per silo, or name the sites like silos: {', '.join(self.silos[:20])}"
            )
        silos = sites if by_name else self.silos
        shared = {
            "experiment": next(iter(self.controllers.values())).experiment,
            "folder": str(self.folder.absolute()),
            "device": self.settings.device,
        }
        return {site: {"silo": silo, **shared} for site, silo in zip(sites, silos, strict=True)}

    def _configure(self, out: str, folder: Path | None = None) -> None:
        """Give each controller its run folder, and the folder that file names are relative to."""
        for name, controller in self.controllers.items():
            controller.out = f"{out}/{name}" if self.all_algorithms else out
            controller.folder = None if folder is None else str(folder.absolute())


def _site_names(env: SimEnv | PocEnv) -> list[str]:
    return list(env.clients or [f"site-{number + 1}" for number in range(env.num_clients)])


def allow_fedilc(local: Path) -> None:
    """Add our prefix to the class allow-list of a `local` folder, or to NVIDIA FLARE's own if it has none."""
    paths = [local / name for name in RESOURCES if (local / name).exists()] or [local / RESOURCES[1]]
    for path in paths:
        resources: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"format_version": 2}
        allowed = list(resources.get(ALLOW_LIST, DEFAULT_CLASS_ALLOW_LIST))
        if ALLOWED not in allowed:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _json(resources | {ALLOW_LIST: [*allowed, ALLOWED]}))


class FedILCBuilder(Builder):  # type: ignore[misc]  # untyped nvflare: its class is Any
    """A provisioning step that allows our components in every kit.

    Args:
        local: the content of `local/fedilc.json`, by participant; a participant that is not named gets none.
    """

    def __init__(self, local: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__()
        self.local = dict(local or {})

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """Change the `local` folders of the server's and the sites' kits."""
        for participant in [project.get_server(), *project.get_clients()]:
            folder = Path(ctx.get_local_dir(participant))
            allow_fedilc(folder)
            if participant.name in self.local:
                write_atomically(folder / FILE, _json(self.local[participant.name]))


def write_poc_project(
    folder: Path, sites: Sequence[str], local: Mapping[str, Any], port: int = 8002, name: str = "fedilc"
) -> Path:
    """Write the `project.yml` of a proof of concept: a server and sites on this machine, with certificates.

    `local` is that of `FedILCBuilder`. The file is written as JSON, which is YAML too.
    """
    server = {"name": "server", "type": "server", "org": ORGANISATION, "default_host": "localhost"}
    admin = {"name": ADMIN, "type": "admin", "org": ORGANISATION, "role": "project_admin"}
    clients = [{"name": site, "type": "client", "org": ORGANISATION} for site in sites]
    templates = ["master_template.yml"]
    project: dict[str, Any] = {
        "api_version": 3,
        "name": name,
        "participants": [server | {"fed_learn_port": port}, *clients, admin],
        "builders": [
            {"path": f"{BUILDERS}.workspace.WorkspaceBuilder", "args": {"template_file": templates}},
            {"path": f"{BUILDERS}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {"path": f"{BUILDERS}.cert.CertBuilder"},
            {"path": "fedilc.runtimes.nvflare.recipe.FedILCBuilder", "args": {"local": dict(local)}},
            {"path": f"{BUILDERS}.signature.SignatureBuilder"},
        ],
    }
    path = folder / "project.yml"
    path.write_bytes(_json(project))
    return path


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
