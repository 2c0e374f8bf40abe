"""An experiment as one validated object, and as one TOML file. This file needs no torch."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveInt, SerializeAsAny

from fedilc.algorithms import find_algorithm, with_weights
from fedilc.errors import ConfigError, nearest
from fedilc.sections import Section, validated
from fedilc.sources import SOURCES, Source

if TYPE_CHECKING:
    from torch import nn

    from fedilc.data import Federation
    from fedilc.data.shelf import Shelf


class Options(Section):
    """Every setting of a run beside its data, model and algorithm."""

    rounds: int = Field(ge=1, description="how many steps the server takes")
    learning_rate: float = Field(gt=0, description="of Adam")
    weight_decay: float = Field(0.0, ge=0, description="of Adam, in its L2 form")
    penalty: float = Field(1.0, ge=0, description="lambda, the weight of the Fishr penalty")
    environment_size: int | None = Field(
        None, ge=1, description="examples an environment inside a silo; none is the whole silo"
    )
    seed: int = Field(0, ge=0, description="every random choice derives from it")
    weights: Literal["equal", "examples"] | None = Field(
        None, description="how much a silo counts in a mean: equal, or examples for n_e/n; none is equal"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    zeros: Literal["ignore", "strict", "authors"] = Field("ignore", description="what a zero is")
    agreement: float | None = Field(None, ge=0, le=1, description="least |mean(sign)| to keep")
    covariance: Literal["diagonal", "full"] = Field("diagonal", description="of Fishr")
    fishr_reduction: Literal["mean", "sum"] = Field("mean", description="of Fishr over silos")
    penalty_anneal_rounds: int = Field(0, ge=0, description="rounds at penalty_start first")
    penalty_start: float = Field(1.0, ge=0, description="lambda of those rounds")
    min_silos: int | None = Field(None, ge=1, description="silos a round needs; none is all")
    silos_per_round: int | None = Field(None, ge=1, description="silos drawn for each round; none is all")
    on_divergence: Literal["stop", "exclude"] = Field(
        "stop", description="after a step to infinity: stop, or ask again without silos that stand out"
    )
    outlier_factor: float = Field(
        100.0, ge=0, description="set answers aside whose norm is over this many times the median; 0 is never"
    )
    max_norm: float | None = Field(None, gt=0, description="clip each silo's gradient to this norm")
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations")
    classifier: str | None = Field(None, description="the layer Fishr matches; none is the last")
    thresholded_batch: int | None = Field(
        None, ge=2, description="report areas of thresholded predictions too, in batches of this many"
    )


class Network(Section):
    """A built-in network and its sizes."""

    name: str = "mlp"
    hidden: list[PositiveInt] | None = None

    def build(self, federation: Federation | Shelf, seed: int) -> nn.Module:
        """The network for a federation's inputs and labels, its weights drawn from `seed`."""
        return self.of_shape(federation.inputs, federation.outputs, seed)

    def of_shape(self, inputs: Sequence[int], outputs: int, seed: int) -> nn.Module:
        """The network for inputs of a shape and a number of logits, its weights drawn from `seed`."""
        from fedilc.models import build_model

        return build_model(self.name, inputs, outputs, seed, **self.sizes)

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes that were given."""
        return {} if self.hidden is None else {"hidden": self.hidden}


class Experiment(Options):
    """A whole experiment: data, network, algorithm and settings."""

    name: str = "experiment"
    summary: str = ""
    algorithm: str = "fishr-inter-geo"
    data: SerializeAsAny[Source]
    model: Network = Network()

    def with_algorithm(self, name: str) -> Experiment:
        """Return the experiment with another algorithm; refuse settings that it cannot have."""
        with_weights(find_algorithm(name)[1], self.weights)
        return self.model_copy(update={"algorithm": name})

    def options(self) -> dict[str, Any]:
        """The settings that `train` takes."""
        return {key: getattr(self, key) for key in Options.model_fields}


def parse_experiment(values: Mapping[str, Any]) -> Experiment:
    """An experiment from nested dictionaries as TOML gives them."""
    values = dict(values)
    data = values.pop("data", None)
    if not isinstance(data, Mapping):
        raise ConfigError("the experiment has no [data] section; add one with source = ...")
    if "source" not in data:
        raise ConfigError(f"the key 'data.source' is missing{nearest('', SOURCES)}")
    source = str(data["source"])
    if source not in SOURCES:
        raise ConfigError(f"data.source={source!r} is unknown{nearest(source, SOURCES)}")
    values["data"] = validated(SOURCES[source], data, "data")
    values["model"] = validated(Network, values.pop("model", {}), "model")
    experiment = validated(Experiment, values)
    with_weights(find_algorithm(experiment.algorithm)[1], experiment.weights)
    return experiment


def shipped_experiments() -> dict[str, Path]:
    """The experiments inside the package, by name."""
    folder = Path(str(files("fedilc"))) / "experiments"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_experiment(name: str, changes: Sequence[str] = ()) -> tuple[Experiment, Path]:
    """An experiment by shipped name or by file, with `key=value` changes, and its folder."""
    shipped = shipped_experiments()
    path = shipped.get(name, Path(name))
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        if path.suffix == ".toml":
            raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
        raise ConfigError(f"experiment {name!r} is unknown{nearest(name, shipped)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} is not valid TOML: {error}") from error
    values.setdefault("name", path.stem)
    for change in changes:
        _change(values, change)
    return parse_experiment(values), path.parent


def _change(values: dict[str, Any], change: str) -> None:
    """Apply one `key=value`; the key may be dotted, the value is TOML or else a plain string."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {change!r} is not of the form key=value")
    *sections, last = key.strip().split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {change!r}: {section!r} is not a section")
    try:
        values[last] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        values[last] = None if text.strip().lower() in ("none", "null") else text
