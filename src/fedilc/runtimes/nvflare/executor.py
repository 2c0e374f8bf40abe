"""A site's component of a job: its own settings, which no job can change, and the steps that it executes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from pydantic import Field, model_validator

from fedilc.config import parse_experiment, read_experiment
from fedilc.data import Silo
from fedilc.data.sources import Section, validated
from fedilc.errors import ConfigError, FedILCError, ProtocolError
from fedilc.federation.client import SiloClient
from fedilc.models.user_models import network_from
from fedilc.runtimes.remote.manifest import Manifest, read_manifest, require_silo
from fedilc.runtimes.remote.silo_client import (
    make_client,
    silo_from_experiment,
    silo_from_file,
    silo_from_provider,
)
from fedilc.runtimes.remote.wire import pack_reply, unpack_request
from fedilc.storage.files import parse_json

FILE = "fedilc.json"
VARIABLE = "FEDILC_SITE_CONFIG"
BODY = "fedilc"
JOIN = "join"
STEP = "step"
STATE_FOLDER = "fedilc-state"


class SiloExecutor(Executor):  # type: ignore[misc]  # untyped nvflare: its class is Any
    """The executor of the silo that the site's own `local/fedilc.json` names.

    Args:
        simulated: each site's configuration, for the simulator, in which sites have no folders.
            It is ignored anywhere else, so that no job can say which data a site uses.
    """

    def __init__(self, simulated: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.simulated = simulated
        self._site: Site | None = None

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, _abort_signal: Signal
    ) -> Shareable:
        """Return the result of a task; if it fails, the reason stays in this site's log."""
        try:
            if self._site is None:
                self._site = self._make_site(fl_ctx)
            answer = self._site.execute(task_name, bytes(shareable.get(BODY) or b""))
        except FedILCError as error:
            self.log_error(fl_ctx, str(error))
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        reply = make_reply(ReturnCode.OK)
        reply[BODY] = answer
        return reply

    def _make_site(self, fl_ctx: FLContext) -> Site:
        name = fl_ctx.get_identity_name()
        workspace = fl_ctx.get_engine().get_workspace()
        local = Path(workspace.get_site_config_dir())
        default = (self.simulated or {}).get(name) if is_simulated(fl_ctx) else None
        config, log = read_config(SiteConfig, local, default), partial(self.log_info, fl_ctx)
        return Site(name, config, local, log, Path(workspace.get_root_dir()) / STATE_FOLDER)


def is_simulated(fl_ctx: FLContext) -> bool:
    """Return whether this site is simulated, as its own process says; a job's name comes from the server."""
    return bool(fl_ctx.get_prop(FLContextKey.SIMULATE_MODE, False))


class Site:
    """One site in one job, without NVIDIA FLARE's classes: it keeps its silo and the last weights in memory.

    The silo's state between rounds is in `state_folder`, which outlives the job.
    """

    def __init__(
        self,
        site: str,
        config: SiteConfig,
        home: Path,
        log: Callable[[str], None],
        state_folder: Path | None = None,
    ) -> None:
        self.silo = config.silo or site
        self._make_silo = config.make_silo(self.silo, home, log)
        self._build = None if config.model is None else network_from(config.model)
        self._device = config.device
        self._log = log
        self._state_folder = state_folder
        self.joined: tuple[Manifest, SiloClient] | None = None
        self._held = ""

    def execute(self, task: str, body: bytes) -> bytes:
        """Return the body of the result of a task."""
        return self._join(body) if task == JOIN else self._step(body)

    def _join(self, body: bytes) -> bytes:
        manifest = read_manifest(body)
        require_silo(self.silo, manifest.run, manifest.silos)
        own = self._make_silo, self._build, self._device, self._state_folder
        self.joined, self._held = (manifest, make_client(manifest, self.silo, *own)), ""
        self._log(f"silo {self.silo!r} joins {manifest.run}, {manifest.algorithm}, {manifest.rounds} rounds")
        return json.dumps({"silo": self.silo, "manifest": manifest.hash}).encode()

    def _step(self, body: bytes) -> bytes:
        if self.joined is None:
            raise ProtocolError("the server sent a step before the manifest of the run")
        manifest, client = self.joined
        received = unpack_request(body, manifest, self._held, client.weights)
        received.require_for(self.silo, manifest)
        reply = client.answer(received.request)
        self._held = received.weights_digest
        return pack_reply(reply, manifest)


class SiteConfig(Section):
    """A site's own settings: its silo, and where its examples come from."""

    silo: str | None = Field(None, description="the silo's name in the run; default: the site's name")
    provider: str | None = Field(None, description="module:function, called with the silo's name")
    data: str | None = Field(None, description="a table, such as .csv, .xlsx, .parquet or .npz")
    label: str = Field("label", description="the label's column in that table")
    validation_share: float = Field(0.3, ge=0, le=0.9, description="the share of that table to hold out")
    experiment: str | dict[str, Any] | None = Field(
        None, description="take the silo from an experiment on this machine, for a trial"
    )
    folder: str = Field("", description="the folder of the file names here; default: this file's folder")
    model: str | None = Field(None, description="module:function of your own network, if it is not built in")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")

    @model_validator(mode="after")
    def _one_source(self) -> SiteConfig:
        if sum(given is not None for given in (self.provider, self.data, self.experiment)) != 1:
            raise ValueError("name the silo's examples with exactly one of provider, data and experiment")
        if self.data is None and self.model_fields_set & {"label", "validation_share"}:
            raise ValueError("label and validation_share belong to data; leave them out")
        return self

    def make_silo(self, name: str, home: Path, log: Callable[[str], None]) -> Callable[[Manifest], Silo]:
        """Return a function that makes the silo of a run; `home` is the folder of the configuration."""
        folder = home / self.folder
        if self.provider is not None:
            return silo_from_provider(name, self.provider)
        if self.data is not None:
            return silo_from_file(name, folder / self.data, self.label, self.validation_share, log)
        if isinstance(self.experiment, str):
            return silo_from_experiment(name, *read_experiment(self.experiment))
        return silo_from_experiment(name, parse_experiment(self.experiment or {}), folder)


class ServerConfig(Section):
    """The server's own settings: its folder of runs, and its network, if that is not built in."""

    runs: str = Field("fedilc-runs", description="a folder that outlives jobs, relative to the workspace")
    model: str | None = Field(
        None, description="module:function of your own network; every site needs it too"
    )


Config = TypeVar("Config", SiteConfig, ServerConfig)


def read_config(kind: type[Config], local: Path, default: Mapping[str, Any] | None = None) -> Config:
    """Read the file in `local`, or the one that FEDILC_SITE_CONFIG names; use `default` if there is none."""
    named = os.environ.get(VARIABLE) if kind is SiteConfig else None
    path = Path(named) if named else local / FILE
    try:
        values = parse_json(path.read_text())
    except FileNotFoundError:
        if default is None or named:
            raise ConfigError(
                f"{path} does not exist; create it and say where this site's examples come from, as in "
                "docs/tutorials/nvflare.md"
            ) from None
        values = default
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        return validated(kind, values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def require_inside(name: str) -> PurePosixPath:
    """Return a run's name as a path; raise if it leads out of the server's folder of runs.

    >>> require_inside("hospitals/first").name
    'first'
    """
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts or not inside.parts:
        raise ConfigError(
            f"out={name!r} leads out of the server's folder of runs, which the server's own "
            "local/fedilc.json names; give a name inside it"
        )
    return inside
