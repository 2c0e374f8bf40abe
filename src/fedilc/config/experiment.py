"""An experiment as one validated object, and as one TOML file. This file needs no torch."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, PositiveInt, SerializeAsAny

from fedilc.algorithms import Algorithm, find_algorithm
from fedilc.algorithms.registry import load_plugins
from fedilc.config.options import Options
from fedilc.data import sources
from fedilc.data.sources import Source, SourceRegistry
from fedilc.errors import ConfigError, listed, nearest
from fedilc.section import Section, validated

if TYPE_CHECKING:
    from torch import nn

    from fedilc.data import Federation
    from fedilc.data.inputs import Shape
    from fedilc.data.silo_store import SiloStore


_OTHER_NAME = {"weights": "silo_weights", "silo_weights": "weights"}  # a change replaces either
_ALGORITHM = "fishr-inter-geo"
SOURCES = SourceRegistry(
    "source",
    {
        "color-digits": sources.ColorDigits,
        "color-digits-shift": sources.ColorDigitsShift,
        "files": sources.Files,
        "heart-disease": sources.HeartDisease,
        "images": sources.Images,
        "many-silos": sources.ManySilos,
        "remote": sources.Remote,
        "remote-images": sources.RemoteImages,
        "remote-tables": sources.RemoteTables,
        "site-shortcuts": sources.SiteShortcuts,
        "tables": sources.Tables,
    },
)
register_source = SOURCES.register


class Network(Section):
    """A built-in network and its sizes."""

    name: str = Field(default="mlp", description="Network by name")
    hidden: list[PositiveInt] | None = Field(
        default=None, description="Widths of the hidden layers; none is the network's own"
    )

    def build(self, federation: Federation | SiloStore, seed: int) -> nn.Module:
        """Return the network for a federation's inputs and labels, with weights drawn from `seed`."""
        return self.of_shape(federation.inputs, federation.outputs, seed)

    def of_shape(self, inputs: Shape, outputs: int, seed: int) -> nn.Module:
        """Return the network for a shape of inputs and a number of logits, with weights drawn from `seed`."""
        from fedilc.models import build_model

        return build_model(self.name, inputs, outputs, seed, **self.sizes)

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the sizes that were given."""
        return {} if self.hidden is None else {"hidden": self.hidden}


class Experiment(Options):
    """A whole experiment: data, network, algorithm and settings."""

    name: str = Field("experiment", description="Name of the run; by default that of the file")
    summary: str = Field("", description="One line for `fedilc list`")
    algorithm: str = Field(_ALGORITHM, description="Algorithm by name")
    beside: list[str] = Field([], description="Algorithms that `fedilc run` compares it with")
    data: SerializeAsAny[Source] = Field(description="The section [data]: where silos come from")
    model: Network = Field(Network(), description="The section [model]: the network and its sizes")

    @cached_property
    def parts(self) -> Algorithm:
        """Return the algorithm with the parts that these settings replace, by name."""
        return find_algorithm(self.algorithm)[1].configured(self)

    def options(self) -> dict[str, Any]:
        """Return the settings that `train` takes."""
        return {key: getattr(self, key) for key in Options.model_fields} | self.part_options


def parse_experiment(values: Mapping[str, Any]) -> Experiment:
    """Return an experiment from nested dictionaries, as TOML has them."""
    values = dict(values)
    values.pop("study", None)  # settings of `fedilc study`, which the file of a run may hold too
    values["data"] = _source(values.pop("data", None))
    if getattr(values["data"], "backbone", None) is not None:
        values.setdefault("model", {"name": "linear"})
    values["model"] = validated(Network, values.pop("model", {}), "model")
    experiment = validated(Experiment, values)
    _ = experiment.parts  # cached; raises now if the parts do not fit together
    for name in experiment.beside:
        find_algorithm(name)
    return experiment


def _source(data: object) -> Source:
    """Return the section [data]."""
    if not isinstance(data, Mapping):
        raise ConfigError("the experiment has no [data] section; add one with source = ...")
    if "source" not in data:
        raise ConfigError(f"the key 'data.source' is missing{nearest('', SOURCES.names())}")
    source = str(data["source"])
    if source not in SOURCES.names():
        raise ConfigError(f"data.source={source!r} is unknown{nearest(source, SOURCES.names())}")
    return validated(SOURCES.get(source), data, "data")


_experiment_folders = [Path(str(files("fedilc"))) / "experiments"]


def register_experiments(folder: Path) -> None:
    """Add a folder in which commands that take an experiment, as `fedilc run NAME`, find NAME.toml."""
    if folder not in _experiment_folders:
        _experiment_folders.append(folder)


def shipped_experiments() -> dict[str, Path]:
    """Return the files of the experiments in the package and in folders of plug-ins, by name."""
    load_plugins()
    found = {path.stem: path for folder in _experiment_folders for path in folder.glob("*.toml")}
    return dict(sorted(found.items()))


def read_experiment(name: str, changes: Sequence[str] = ()) -> tuple[Experiment, Path]:
    """Return an experiment by shipped name or by file, with `key=value` changes, and its folder.

    If a change selects another algorithm than the file's, that algorithm's defaults apply (such as a server's
    learning rate of 1 for whole updates), unless the changes set them. Newton's method is for linear models,
    so that `logistic` and `ridge` take that one in place of the file's.
    """
    values, path = _read(name)
    written = values.get("algorithm", _ALGORITHM)
    changed = [_change(values, change) for change in changes]
    if "data.backbone" in changed and not any(key.startswith("model") for key in changed):
        values.pop("model", None)  # a network for pictures does not take features
    chosen = values.get("algorithm", _ALGORITHM)
    if chosen != written:
        entry = find_algorithm(chosen)[1]
        values |= {key: value for key, value in entry.defaults.items() if key not in changed}
        if entry.is_newton:
            _make_linear(values, changed)
    return parse_experiment(values), path.parent


def _read(name: str) -> tuple[dict[str, Any], Path]:
    """Return the content of an experiment's file, given by shipped name or by path, and its path."""
    shipped = shipped_experiments()
    path = shipped.get(name, Path(name))
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        if path.suffix == ".toml":
            raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
        raise ConfigError(f"experiment {name!r} is unknown{nearest(name, shipped)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{name} is not valid TOML: {error}") from error
    values.setdefault("name", path.stem)
    return values, path


def refuse_secure_study(secure: object) -> None:
    """Raise if a study, which leaves sites out in turn, shall have secure sums."""
    if secure:
        raise ConfigError(
            "a study leaves each site out in turn, and totals over all sites and over all but one, at the "
            "same weights, subtract to the answer of the one, so that secure sums would hide nothing; train "
            "one model with `fedilc serve` and one fixed held-out site in data.test, or leave out secure"
        )


def has_study(name: str) -> bool:
    """Return whether an experiment's file has a section [study]."""
    return "study" in _read(name)[0]


def read_study_file(name: str, changes: Sequence[str] = ()) -> tuple[str, Source, Path, dict[str, Any]]:
    """Return the name, data, folder and settings of a study from an experiment, by shipped name or by file.

    Settings come from the section [study], and before it from what a run and a study have in common: rounds,
    environment size, algorithms and widths, and the rate and lambda of the run as the only candidates. A file
    that sets anything else is refused; from shipped experiments, a study takes only the data.
    """
    values, path = _read(name)
    refuse_secure_study(values.pop("secure", None))
    for change in changes:
        _change(values, change)
    own, data, study = values.pop("name"), _source(values.pop("data", None)), values.pop("study", {})
    values.pop("summary", None)
    if name in shipped_experiments():
        return own, data, path.parent, {}
    if not isinstance(study, dict):
        raise ConfigError(f"study={study!r} in {name} is not a section; set its keys, as in [study]")
    model = values.pop("model", {})
    found: dict[str, Any] = {key: values.pop(key) for key in ("rounds", "environment_size") if key in values}
    for one, several in (("learning_rate", "learning_rates"), ("penalty_weight", "penalty_weights")):
        if one in values:
            found[several] = [values.pop(one)]
    if "algorithm" in values:
        found["algorithms"] = list(dict.fromkeys([values.pop("algorithm"), *values.pop("beside", [])]))
    network = validated(Network, model, "model")
    if model and network.name == "mlp" and network.hidden is not None:
        found["hidden"] = network.hidden
    elif model == {"name": "linear"}:
        found["model"] = network.name
    elif model:
        values["model"] = model
    if values:
        raise ConfigError(
            f"{name} sets {listed(sorted(values), 5)}, which a study does not take; leave out settings of a "
            "single run, and give a study's settings in the section [study]"
        )
    return own, data, path.parent, found | study


def _make_linear(values: dict[str, Any], changed: Sequence[str]) -> None:
    """Use a linear model and leave out parts that Newton's method does not take, unless they were set."""
    if not any(key.startswith("model") for key in changed):
        values["model"] = {"name": "linear"}
    for key in ("optimizer", "optimizer_options", "inter", "penalty", *_OTHER_NAME, "environment_size"):
        if key not in changed:
            values.pop(key, None)


def _change(values: dict[str, Any], change: str) -> str:
    """Apply one `key=value`, and return the key, which may have dots; the value is TOML or plain text."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"the change {change!r} is not of the form key=value")
    *sections, last = key.strip().split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"the change {change!r} is not valid: {section!r} is not a section")
    try:
        values[last] = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        values[last] = None if text.strip().lower() in ("none", "null") else text
    values.pop(_OTHER_NAME.get(key.strip(), ""), None)
    return key.strip()
