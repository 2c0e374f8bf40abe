"""Read `local/fedilc.json`, the own settings of a site or of the server; no job can change them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pydantic import Field, model_validator

from fedilc.config import parse_experiment, read_experiment
from fedilc.config.section import Section, validated
from fedilc.data import Silo
from fedilc.errors import ConfigError
from fedilc.federation.json_files import parse_json
from fedilc.runtimes.remote import builders
from fedilc.runtimes.remote.manifest import Manifest

FILE = "fedilc.json"
VARIABLE = "FEDILC_SITE_CONFIG"


class SiteConfig(Section):
    """A site's own settings: its silo, and where its examples come from."""

    silo: str | None = Field(None, description="the silo's name in the run; default: the site's name")
    provider: str | None = Field(None, description="module:function, called with the silo's name")
    data: str | None = Field(None, description="a table, such as .csv, .xlsx, .parquet or .npz")
    label: str = Field("label", description="the column of that table that holds the label")
    validation_share: float = Field(0.3, ge=0, le=0.9, description="the share of that table held out")
    experiment: str | dict[str, Any] | None = Field(
        None, description="take the silo from an experiment on this machine, for a trial"
    )
    folder: str = Field("", description="what file names are relative to; default: this file's folder")
    model: str | None = Field(None, description="module:function of your own network, if not a built-in one")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")

    @model_validator(mode="after")
    def _one_source(self) -> SiteConfig:
        if sum(given is not None for given in (self.provider, self.data, self.experiment)) != 1:
            raise ValueError("give the silo's examples by one of provider, data and experiment")
        if self.data is None and self.model_fields_set & {"label", "validation_share"}:
            raise ValueError("label and validation_share belong to data; leave them out")
        return self

    def make_silo(self, name: str, home: Path, log: Callable[[str], None]) -> Callable[[Manifest], Silo]:
        """Return a function that makes the silo of a run; `home` is the folder of the configuration."""
        folder = home / self.folder
        if self.provider is not None:
            return builders.silo_from_provider(name, self.provider)
        if self.data is not None:
            return builders.silo_from_file(name, folder / self.data, self.label, self.validation_share, log)
        if isinstance(self.experiment, str):
            return builders.silo_from_experiment(name, *read_experiment(self.experiment))
        return builders.silo_from_experiment(name, parse_experiment(self.experiment or {}), folder)


class ServerConfig(Section):
    """The server's own settings: its folder of runs, and its network, if the run's is not built in."""

    runs: str = Field("fedilc-runs", description="a folder that outlives jobs, relative to the workspace")
    model: str | None = Field(
        None, description="module:function of your own network; every site needs it too"
    )


Config = TypeVar("Config", SiteConfig, ServerConfig)


def require_inside(name: str) -> PurePosixPath:
    """Return a run's name as a path; raise if it leads out of the server's folder of runs.

    >>> require_inside("hospitals/first").name
    'first'
    """
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts or not inside.parts:
        raise ConfigError(
            f"out={name!r} is not a name inside the server's folder of runs; the server's own "
            "local/fedilc.json says where that folder is"
        )
    return inside


def read_config(kind: type[Config], local: Path, default: Mapping[str, Any] | None = None) -> Config:
    """Read the file in `local`, or the one that FEDILC_SITE_CONFIG names; use `default` if there is none."""
    named = os.environ.get(VARIABLE) if kind is SiteConfig else None
    path = Path(named) if named else local / FILE
    try:
        values = parse_json(path.read_text())
    except FileNotFoundError:
        if default is None or named:
            raise ConfigError(
                f"{path} does not exist; write into it where this site's examples come from, as in "
                "docs/nvflare.md"
            ) from None
        values = default
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        return validated(kind, values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
