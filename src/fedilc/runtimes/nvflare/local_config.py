"""What a site or the server says of itself, in its own `local/fedilc.json`; no job can change it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, model_validator
from torch import nn

from fedilc.config import parse_experiment
from fedilc.config.section import Section, validated
from fedilc.data import Silo
from fedilc.errors import ConfigError, DataError
from fedilc.runtimes.remote import builders as setting_up
from fedilc.runtimes.remote.manifest import Manifest

FILE = "fedilc.json"
VARIABLE = "FEDILC_SITE_CONFIG"


class SiteConfig(Section):
    """Which silo a site is, and where its examples come from: one of `provider`, `data` and `experiment`."""

    silo: str | None = Field(None, description="the silo's name in the run; none is the site's own name")
    provider: str | None = Field(None, description="module:function, called with the silo's name")
    data: str | None = Field(None, description="a table, .csv, .parquet or .npz")
    label: str = Field("label", description="the column of that table that holds the label")
    validation_share: float = Field(0.3, ge=0, le=0.9, description="held out of that table")
    experiment: str | dict[str, Any] | None = Field(
        None, description="take the silo from an experiment on this machine, to try things out"
    )
    model: str | None = Field(None, description="module:function of one's own network, if not a built-in one")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")

    @model_validator(mode="after")
    def _one_origin(self) -> SiteConfig:
        if sum(given is not None for given in (self.provider, self.data, self.experiment)) != 1:
            raise ValueError("give the silo's examples by one of provider, data and experiment")
        return self

    def make_silo(self, name: str, home: Path, tell: Callable[[str], None]) -> Callable[[Manifest], Silo]:
        """What makes the silo, once the run is known; files are given relative to `home`."""
        if self.provider is not None:
            return setting_up.silo_from_provider(name, self.provider)
        if self.data is not None:
            path = home / self.data
            if not path.exists():
                raise DataError(f"{path} does not exist; name the silo's table in {FILE}")
            return setting_up.silo_from_file(name, path, self.label, self.validation_share, tell)
        if isinstance(self.experiment, str):
            return setting_up.silo_from_experiment(name, self.experiment)
        return _silo_of_settings(name, self.experiment or {}, home)

    def build(self) -> Callable[[Manifest], nn.Module] | None:
        """The network of one's own, if there is one."""
        return setting_up.network_from(self.model) if self.model is not None else None


class ServerConfig(Section):
    """Where the server keeps runs, and the network of its own, if the run's is not built in."""

    runs: str = Field("fedilc-runs", description="a folder that outlives jobs, relative to the workspace")
    model: str | None = Field(None, description="module:function of one's own network; sites bring it too")


Config = TypeVar("Config", SiteConfig, ServerConfig)


def read_config(kind: type[Config], local: Path, otherwise: Mapping[str, Any] | None = None) -> Config:
    """What the file in `local` says, or that which the environment names; `otherwise` if there is none."""
    named = os.environ.get(VARIABLE) if kind is SiteConfig else None
    path = Path(named) if named else local / FILE
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        if otherwise is None or named:
            raise ConfigError(
                f"{path} does not exist; say there where this site's examples come from, as docs/nvflare.md "
                "shows"
            ) from None
        found = otherwise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        return validated(kind, found)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _silo_of_settings(name: str, values: Mapping[str, Any], home: Path) -> Callable[[Manifest], Silo]:
    settings = parse_experiment(values)

    def make(manifest: Manifest) -> Silo:
        store = settings.data.store(manifest.seed, home)
        if name not in store.sizes:
            raise DataError(
                f"the experiment has no silo {name!r}; it has {', '.join(list(store.sizes)[:20])}"
            )
        return store.open(name)

    return make
