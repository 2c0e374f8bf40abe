"""The settings of a run besides its data, model and algorithm. This file needs no torch.

Each is declared once: here if every run has it, and otherwise by the part that it belongs to, as `zeros` by
the weighted geometric mean. `Options` takes both in one flat spelling, which `train`, `--set` and TOML share.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from fedilc.algorithms.algorithm import require_weights
from fedilc.algorithms.loss_name import LossName
from fedilc.algorithms.metric_name import METRICS
from fedilc.algorithms.parts import LocalSteps, check_option, option_names
from fedilc.errors import ConfigError, FedILCWarning, nearest
from fedilc.section import SENTENCE, Section

# Flat spellings of options that their parts call otherwise.
FLAT_NAMES = {"fishr_reduction": "reduction"}
Balance = Literal["weights", "oversample"]


class SiloOptions(Section):
    """The settings that silos must know, and that a manifest therefore holds."""

    environment_size: int | None = Field(None, ge=1, description="in examples; none is the whole silo")
    seed: int = Field(0, ge=0, description="every random choice derives from it")
    balance: Balance | None = Field(None, description="how classes of a silo come to count equally")
    metrics: list[str] | None = Field(None, description="metrics of your own, by name, beside the usual ones")
    max_norm: float | None = Field(None, gt=0, description="clip each silo's answers to this norm")
    classifier: str | None = Field(
        None, description="the layer that gives the logits, for Fishr and CORAL; none: it is found"
    )
    weights_step: float = Field(0.01, gt=0, description="step size of the weights group-dro and afl")
    weights_power: float = Field(1.0, ge=0, description="q of the weights q-ffl")

    @field_validator("metrics")
    @classmethod
    def _registered(cls, names: list[str] | None) -> list[str] | None:
        for name in names or ():
            try:
                METRICS.get(name)
            except ConfigError as error:
                raise PydanticCustomError(SENTENCE, "{why}", {"why": str(error)}) from error
        return names or None

    @field_validator("balance", mode="before")
    @classmethod
    def _none_is_a_word(cls, value: object) -> object:
        return None if value == "none" else value


class Options(SiloOptions):
    """Every setting of a run beside its data, model and algorithm; `train` explains each in full.

    Options that a part of the algorithm declares are taken too, under their own names.

    >>> Options(rounds=1, learning_rate=0.1, zeros="strict").part_options
    {'zeros': 'strict'}
    """

    model_config = ConfigDict(extra="allow")

    rounds: int = Field(ge=1, description="how many steps the server takes")
    learning_rate: float = Field(gt=0, description="of the server's optimiser")
    weight_decay: float = Field(0.0, ge=0, description="of the server's optimiser; Adam's is its L2 form")
    penalty: str | None = Field(None, description="what silos match; none is the algorithm's own")
    penalty_weight: float = Field(1.0, ge=0, description="lambda, the weight of the penalty")
    loss: LossName | None = Field(None, description="a loss for the same labels; none is that of the data")
    inter: str | None = Field(None, description="how silos become one; none is the algorithm's own")
    silo_weights: str | dict[str, float] | None = Field(
        None, description="how much silos count in a mean: a rule, or one number per silo"
    )
    optimizer: str | None = Field(None, description="of the server; none is the algorithm's own")
    optimizer_options: dict[str, Any] = Field({}, description="of that optimiser, such as momentum")
    learning_rate_schedule: Literal["constant", "step", "cosine"] = Field(
        "constant", description="how the server's rate changes by round"
    )
    warmup_rounds: int = Field(0, ge=0, description="first rounds in which the server's rate rises")
    decay_rounds: int | None = Field(None, ge=1, description="rounds between steps; none is a third of all")
    decay_factor: float = Field(0.1, gt=0, le=1, description="of the rate at each such step")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    penalty_anneal_rounds: int = Field(0, ge=0, description="first rounds, in which lambda is penalty_start")
    penalty_start: float = Field(1.0, ge=0, description="lambda of those rounds")
    min_silos: int | None = Field(
        None, ge=1, description="silos that a round needs; none is all that it asks"
    )
    silos_per_round: int | None = Field(None, ge=1, description="silos drawn for each round; none is all")
    on_divergence: Literal["stop", "exclude"] = Field(
        "stop", description="if weights become infinite: stop, or ask again without silos that stand out"
    )
    outlier_factor: float = Field(
        100.0,
        ge=0,
        description="over a network, set answers aside whose norm is over this many times the median; in one "
        "process, warn; 0 is never",
    )
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations")
    thresholded_batch: int | None = Field(
        None, ge=2, description="report areas of thresholded predictions too, in batches of this many"
    )

    def quorum(self, silos: int) -> int:
        """Return how many silos a round needs at least: `min_silos`, or all that a round asks."""
        return self.min_silos or self.silos_per_round or silos

    @property
    def part_options(self) -> dict[str, Any]:
        """Return the options of parts that were given."""
        return dict(self.model_extra or {})

    @property
    def for_parts(self) -> dict[str, Any]:
        """Return the options that parts may declare: their own, and those of silos that were changed."""
        return self.given(*SiloOptions.model_fields) | self.part_options

    def given(self, *names: str) -> dict[str, Any]:
        """Return those of the named options that differ from their defaults."""
        defaults = {key: type(self).model_fields[key].default for key in names}
        return {key: getattr(self, key) for key, value in defaults.items() if getattr(self, key) != value}

    @property
    def fishr_reduction(self) -> str:
        """Return how the penalty is reduced over silos, by the flat spelling of its option `reduction`."""
        return str(self.part_options.get(FLAT_NAMES["fishr_reduction"], "mean"))

    @model_validator(mode="before")
    @classmethod
    def _options_of_parts(cls, values: Any) -> Any:
        """Refuse a key that neither every run nor some part has; None stands for the part's own default."""
        values = part_spelling(values)
        given = [key for key in values if key not in cls.model_fields]
        for key in given:
            try:
                known = check_option(key, values[key])
            except ConfigError as error:
                raise PydanticCustomError(SENTENCE, "{why}", {"why": str(error)}) from error
            if not known:
                hint = nearest(str(key), [*cls.model_fields, *option_names()])
                raise PydanticCustomError(SENTENCE, "{why}", {"why": f"the key {key!r} is unknown{hint}"})
        return {key: value for key, value in values.items() if key not in given or value is not None}

    @field_validator("silo_weights", mode="before")
    @classmethod
    def _rule_or_numbers(cls, value: object) -> object:
        if value is not None:
            try:
                require_weights(value)
            except ConfigError as error:
                raise PydanticCustomError(SENTENCE, "{why}", {"why": str(error)}) from error
        return dict(value) if isinstance(value, Mapping) else value

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

    @model_validator(mode="before")
    @classmethod
    def _silo_weights_were_weights(cls, values: Any) -> Any:
        """Rename `weights`, which is what a network learns, to `silo_weights`, with a warning."""
        if not isinstance(values, Mapping) or "weights" not in values:
            return values
        values = dict(values)
        former = values.pop("weights")
        if former is None:
            return values
        if values.get("silo_weights") is not None:
            why = "weights is the former name of silo_weights; leave weights out"
            raise PydanticCustomError(SENTENCE, "{why}", {"why": why})
        warnings.warn("weights of silos are now called silo_weights", FedILCWarning, stacklevel=2)
        return values | {"silo_weights": former}


def part_spelling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with each option of a part under the name that the part declares.

    >>> part_spelling({"seed": 1, "fishr_reduction": "sum"})
    {'seed': 1, 'reduction': 'sum'}
    """
    for flat, name in FLAT_NAMES.items():
        if flat in values and values.get(name, values[flat]) != values[flat]:
            raise PydanticCustomError(
                SENTENCE,
                "{why}",
                {"why": f"{flat} and {name} are one option and differ; give one of the two"},
            )
    return {FLAT_NAMES.get(key, key): value for key, value in values.items()}


def recorded_options(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in the facts of a run folder: those that every run has, then those given to parts.

    >>> facts = {"seed": 1, "zeros": "strict", "choices": {"inter": {"name": "geometric", "zeros": "strict"}}}
    >>> recorded_options(facts)
    {'seed': 1, 'zeros': 'strict'}
    """
    parts = (part for part in (facts.get("choices") or {}).values() if isinstance(part, Mapping))
    own = [*LocalSteps.FLAT, *(key for part in parts for key in part if key != "name")]
    known = dict.fromkeys([*Options.model_fields, *own])
    return {key: facts[key] for key in known if key in facts and key != "loss"}  # facts have the data's loss
