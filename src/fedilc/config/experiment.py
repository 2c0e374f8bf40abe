"""An experiment as one validated object, and as one TOML file. This file needs no torch."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Mapping, Sequence
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveInt, SerializeAsAny, field_validator, model_validator

from fedilc.algorithms import Algorithm, find_algorithm
from fedilc.algorithms.algorithm import WEIGHTS
from fedilc.config.section import Section, validated
from fedilc.config.source import Source
from fedilc.config.sources import SOURCES
from fedilc.errors import ConfigError, FedILCWarning, nearest

if TYPE_CHECKING:
    from torch import nn

    from fedilc.data import Federation
    from fedilc.data.silo_store import SiloStore


_ALGORITHM = "fishr-inter-geo"
Balance = Literal["weights", "oversample"]
NETWORKS = {
    "mlp": "392-390-390-1 for Color-MNIST; set hidden = [..] for other widths",
    "cnn": "three 3x3 convolutions with GroupNorm for Rotated-CIFAR10",
    "eicu-mlp": "1024-1024-512-1 for eICU; set hidden = [..] for other widths",
}


class Options(Section):
    """Every setting of a run beside its data, model and algorithm."""

    rounds: int = Field(ge=1, description="how many steps the server takes")
    learning_rate: float = Field(gt=0, description="of the server's optimiser")
    weight_decay: float = Field(0.0, ge=0, description="of the server's optimiser; Adam's is its L2 form")
    penalty: str | None = Field(None, description="what silos match; none is the algorithm's own")
    penalty_weight: float = Field(1.0, ge=0, description="lambda, the weight of the penalty")
    environment_size: int | None = Field(
        None, ge=1, description="examples per environment inside a silo; none is the whole silo"
    )
    seed: int = Field(0, ge=0, description="every random choice derives from it")
    weights: str | dict[str, float] | None = Field(
        None,
        description="how much a silo counts in a mean: a rule, or a number each; none is the algorithm's",
    )
    weights_step: float = Field(0.01, gt=0, description="step size of the weights group-dro and afl")
    weights_power: float = Field(1.0, ge=0, description="q of the weights q-ffl")
    local_steps: int | None = Field(None, ge=1, description="steps of each silo per round")
    local_epochs: int | None = Field(None, ge=1, description="passes over a silo's examples per round")
    batch_size: int | None = Field(None, ge=1, description="examples per local step; none is the algorithm's")
    local_optimizer: str | None = Field(None, description="of local steps")
    local_learning_rate: float | None = Field(None, gt=0, description="of local steps")
    proximal: float | None = Field(None, ge=0, description="mu of FedProx, in local steps")
    optimizer: str | None = Field(None, description="of the server; none is the algorithm's own")
    optimizer_options: dict[str, Any] = Field(
        default_factory=dict, description="of the server's optimiser, such as momentum"
    )
    learning_rate_schedule: Literal["constant", "step", "cosine"] = Field(
        "constant", description="how the server's rate changes by round"
    )
    warmup_rounds: int = Field(0, ge=0, description="first rounds in which the server's rate rises")
    decay_rounds: int | None = Field(
        None, ge=1, description="rounds between steps of the rate; none is a third"
    )
    decay_factor: float = Field(0.1, gt=0, le=1, description="of the rate at each such step")
    balance: Balance | None = Field(
        None, description="let the classes of a silo count equally: none, weights or oversample"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    zeros: Literal["ignore", "strict", "authors"] = Field("ignore", description="how wgm counts a zero")
    agreement: float | None = Field(None, ge=0, le=1, description="least |mean(sign)| of a coordinate")
    min_side: int | None = Field(
        None, ge=1, description="least values of one sign that wgm counts; none is 1"
    )
    covariance: Literal["diagonal", "full"] = Field("diagonal", description="that Fishr matches")
    fishr_reduction: Literal["mean", "sum"] = Field("mean", description="of the penalty over silos")
    penalty_anneal_rounds: int = Field(0, ge=0, description="first rounds, in which lambda is penalty_start")
    penalty_start: float = Field(1.0, ge=0, description="lambda of those rounds")
    min_silos: int | None = Field(None, ge=1, description="silos a round needs; none is all")
    silos_per_round: int | None = Field(None, ge=1, description="silos drawn for each round; none is all")
    on_divergence: Literal["stop", "exclude"] = Field(
        "stop",
        description="if weights become infinite: stop, or ask again without silos that stand out",
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

    def quorum(self, silos: int) -> int:
        """Return how many of the run's silos a round needs at least."""
        return self.min_silos or self.silos_per_round or silos

    @field_validator("balance", mode="before")
    @classmethod
    def _none_is_a_word(cls, value: object) -> object:
        return None if value == "none" else value

    @field_validator("weights", mode="before")
    @classmethod
    def _rule_or_numbers(cls, value: object) -> object:
        if isinstance(value, Mapping):
            numbers = list(value.values())
            if numbers and not any(
                isinstance(n, bool) or not isinstance(n, int | float) or not 0 < n < inf for n in numbers
            ):
                return dict(value)
        elif value is None or value in WEIGHTS:
            return value
        raise ValueError(
            f"give one of {', '.join(WEIGHTS)}, or a number above 0 for each silo, as in {{a = 2.0, b = 1.0}}"
        )

    @model_validator(mode="before")
    @classmethod
    def _penalty_was_a_number(cls, values: Any) -> Any:
        """Rename a numeric `penalty`, as version 0.1 had it, to `penalty_weight`, with a warning."""
        if isinstance(values, Mapping) and isinstance(values.get("penalty"), float | int):
            values = dict(values)
            warnings.warn(
                "penalty as a number is now called penalty_weight; penalty names what silos match",
                FedILCWarning,
                stacklevel=2,
            )
            values["penalty_weight"] = values.pop("penalty")
        return values


class Network(Section):
    """A built-in network and its sizes."""

    name: str = "mlp"
    hidden: list[PositiveInt] | None = None

    def build(self, federation: Federation | SiloStore, seed: int) -> nn.Module:
        """Return the network for a federation's inputs and labels, with weights drawn from `seed`."""
        return self.of_shape(federation.inputs, federation.outputs, seed)

    def of_shape(self, inputs: Sequence[int], outputs: int, seed: int) -> nn.Module:
        """Return the network for a shape of inputs and a number of logits, with weights drawn from `seed`."""
        from fedilc.models import build_model

        return build_model(self.name, inputs, outputs, seed, **self.sizes)

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the sizes that were given."""
        return {} if self.hidden is None else {"hidden": self.hidden}


class Experiment(Options):
    """A whole experiment: data, network, algorithm and settings."""

    name: str = "experiment"
    summary: str = ""
    algorithm: str = _ALGORITHM
    beside: list[str] = Field(
        default_factory=list, description="algorithms that `fedilc run` compares it with"
    )
    data: SerializeAsAny[Source]
    model: Network = Network()

    def parts(self) -> Algorithm:
        """Return the algorithm with the parts that these settings replace."""
        return find_algorithm(self.algorithm)[1].configured(self)

    def options(self) -> dict[str, Any]:
        """Return the settings that `train` takes."""
        return {key: getattr(self, key) for key in Options.model_fields}


def parse_experiment(values: Mapping[str, Any]) -> Experiment:
    """Return an experiment from nested dictionaries, as TOML has them."""
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
    experiment.parts()
    for name in experiment.beside:
        find_algorithm(name)
    return experiment


def shipped_experiments() -> dict[str, Path]:
    """Return the files of the experiments in the package, by name."""
    folder = Path(str(files("fedilc"))) / "experiments"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_experiment(name: str, changes: Sequence[str] = ()) -> tuple[Experiment, Path]:
    """Return an experiment by shipped name or by file, with `key=value` changes, and its folder.

    If a change selects another algorithm than the file's, that algorithm's defaults apply (such as a server's
    learning rate of 1 for whole updates), unless the changes set them.
    """
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
    written = values.get("algorithm", _ALGORITHM)
    changed = [_change(values, change) for change in changes]
    chosen = values.get("algorithm", _ALGORITHM)
    if chosen != written:
        defaults = find_algorithm(chosen)[1].defaults
        values |= {key: value for key, value in defaults.items() if key not in changed}
    return parse_experiment(values), path.parent


def _change(values: dict[str, Any], change: str) -> str:
    """Apply one `key=value`, and return the key, which may have dots; the value is TOML or plain text."""
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
    return key.strip()
