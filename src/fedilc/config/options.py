"""The settings of a run besides its data, model and algorithm. This file needs no torch.

Each setting is declared once: here if every run has it, and otherwise by its part, as the weighted geometric
mean declares `zeros`. `Options` takes both in one flat spelling, which `train`, TOML and the command share.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from fedilc.algorithms.algorithm import require_weights
from fedilc.algorithms.loss_registry import LossName
from fedilc.algorithms.metric_registry import METRICS
from fedilc.algorithms.parts import LocalSteps, check_option, option_names
from fedilc.errors import ConfigError, FedILCWarning, nearest
from fedilc.section import SENTENCE, Section

# Flat spellings of options that have another name in their parts.
FLAT_NAMES = {"fishr_reduction": "reduction"}
Balance = Literal["weights", "oversample"]
SUM_LIMIT, SECURE_UNIT = 4096.0, 2.0**-40


class SiloOptions(Section):
    """The settings that silos must know; the manifest holds them."""

    environment_size: int | None = Field(
        None, ge=1, description="Examples per environment; none is the whole silo"
    )
    seed: int = Field(0, ge=0, description="Seed from which every random choice derives")
    balance: Balance | None = Field(None, description="How to balance classes within a silo")
    metrics: list[str] | None = Field(
        None, description="Names of registered metrics to measure besides the usual ones"
    )
    max_norm: float | None = Field(None, gt=0, description="Norm to which each silo's answers are clipped")
    classifier: str | None = Field(
        None, description="Layer that gives the logits, for Fishr and CORAL; none finds it"
    )
    weights_step: float = Field(0.01, gt=0, description="Step size of the silo weights group-dro and afl")
    weights_power: float = Field(1.0, ge=0, description="Power q of the silo weights q-ffl")
    secure: bool | None = Field(
        None, description="Whether silos hide their answers in secure sums, over HTTP"
    )
    sum_unit: float | None = Field(
        None, gt=0, description="Power of two to whose multiples silos round what is added up; none is exact"
    )
    sum_limit: float | None = Field(
        None, gt=0, description="Magnitude to which silos clip each rounded number; none is 4096"
    )

    @field_validator("sum_unit", "sum_limit", mode="before")
    @classmethod
    def _power_of_two(cls, value: object) -> object:
        """Return a power of two, which may be written as "2^-40"; multiples of others are not exact."""
        if value is None:
            return None
        base, caret, exponent = str(value).partition("^")
        with contextlib.suppress(ValueError, OverflowError):
            number = 2.0 ** int(exponent) if caret and base == "2" else float(base)
            if (
                math.frexp(number)[0] == 0.5
                and 2.0**-120 <= number <= 2.0**100
                and not (caret and base != "2")
            ):
                return number
        why = f"sum_unit and sum_limit are powers of two, such as 2^-40, not {value!r}"
        raise PydanticCustomError(SENTENCE, "{why}", {"why": why})

    @model_validator(mode="after")
    def _window(self) -> SiloOptions:
        if self.sum_unit is None and self.sum_limit is not None:
            why = "sum_limit has no effect without sum_unit; give both, or leave sum_limit out"
            raise PydanticCustomError(SENTENCE, "{why}", {"why": why})
        if self.sum_unit is not None and self.limit < self.sum_unit:
            why = f"sum_limit={self.limit:g} is smaller than sum_unit={self.sum_unit:g}; raise it"
            raise PydanticCustomError(SENTENCE, "{why}", {"why": why})
        return self

    @property
    def limit(self) -> float:
        """Return the magnitude to which silos clip each rounded number."""
        return SUM_LIMIT if self.sum_limit is None else self.sum_limit

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
    """Every setting of a run besides its data, model and algorithm; `train` explains each in full.

    It also takes the options that a part of the algorithm declares, under their own names.

    >>> Options(rounds=1, learning_rate=0.1, zeros="strict").part_options
    {'zeros': 'strict'}
    """

    model_config = ConfigDict(extra="allow")

    rounds: int = Field(ge=1, description="Number of rounds, in each of which the server takes one step")
    learning_rate: float = Field(gt=0, description="Server learning rate")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of the server; Adam's is its L2 form")
    penalty: str | None = Field(None, description="Penalty by name; none is the algorithm's own")
    penalty_weight: float = Field(1.0, ge=0, description="Weight of the penalty, lambda")
    loss: LossName | None = Field(None, description="Loss by name; none is the loss of the data")
    inter: str | None = Field(
        None, description="Aggregation across silos by name; none is the algorithm's own"
    )
    silo_weights: str | dict[str, float] | None = Field(
        None, description="Silo weighting: a rule name or one number per silo"
    )
    optimizer: str | None = Field(None, description="Server optimiser by name; none is the algorithm's own")
    optimizer_options: dict[str, Any] = Field(
        {}, description="Options of the server optimiser, such as momentum"
    )
    learning_rate_schedule: Literal["constant", "step", "cosine"] = Field(
        "constant", description="How the server learning rate changes by round"
    )
    warmup_rounds: int = Field(
        0, ge=0, description="Number of first rounds, in which the server learning rate rises"
    )
    decay_rounds: int | None = Field(
        None, ge=1, description="Rounds between two steps of the learning rate; none is a third of all rounds"
    )
    decay_factor: float = Field(0.1, gt=0, le=1, description="Factor of the learning rate at each such step")
    average: Literal["ema", "last"] | None = Field(
        None, description="Average of the weights over rounds, which is evaluated and saved: ema or last"
    )
    average_decay: float | None = Field(
        None, gt=0, lt=1, description="Decay per round of average=ema; none is 0.95"
    )
    average_share: float | None = Field(
        None, gt=0, le=1, description="Share of the rounds that average=last averages; none is 0.25"
    )
    device: str = Field("auto", description="Device: auto, cpu, cuda, cuda:1, ...")
    penalty_anneal_rounds: int = Field(
        0, ge=0, description="Number of first rounds, in which lambda is penalty_start"
    )
    penalty_start: float = Field(1.0, ge=0, description="Weight of the penalty in those rounds")
    min_silos: int | None = Field(
        None, ge=1, description="Fewest silos that a round needs; none is all that it asks"
    )
    silos_per_round: int | None = Field(
        None, ge=1, description="Number of silos drawn for each round; none is all"
    )
    on_divergence: Literal["stop", "exclude"] = Field(
        "stop",
        description="If weights become infinite: stop, or repeat the round without silos that stand out",
    )
    outlier_factor: float = Field(
        100.0,
        ge=0,
        description="Multiple of the median norm above which an answer is set aside (over a network) or "
        "warned about (in one process); 0 is never",
    )
    evaluate_every: int = Field(1, ge=1, description="Rounds between two evaluations")
    thresholded_batch: int | None = Field(
        None,
        ge=2,
        description="Batch size in which areas under curves of thresholded predictions are reported too",
    )

    @model_validator(mode="before")
    @classmethod
    def _unit_of_secure_sums(cls, values: Any) -> Any:
        """Give secure sums a unit, and refuse what needs each silo's own numbers or a changing cohort."""
        if not isinstance(values, Mapping) or not values.get("secure"):
            return values
        values = {**values, "sum_unit": values.get("sum_unit") or SECURE_UNIT}
        for key, usual, instead in (
            (
                "outlier_factor",
                (None, 0, 100.0),
                "leave it out, or set max_norm, by which each silo clips itself",
            ),
            ("on_divergence", (None, "stop"), "leave it out"),
            ("silos_per_round", (None,), "all silos take part in every round"),
        ):
            if values.get(key) not in usual:
                why = (
                    f"{key}={values[key]!r} needs each silo's own answers, which secure sums hide; {instead}"
                )
                raise PydanticCustomError(SENTENCE, "{why}", {"why": why})
        return values

    def refuse_secure(self) -> None:
        """Raise if the run has secure sums, where silos do not join over HTTP."""
        if self.secure:
            raise ConfigError(
                "secure sums are for silos that join over HTTP: start the run with `fedilc serve`, or leave "
                "out secure=true"
            )

    def quorum(self, silos: int) -> int:
        """Return the fewest silos that a round needs: `min_silos`, or all that a round asks."""
        return self.min_silos or self.silos_per_round or silos

    @property
    def part_options(self) -> dict[str, Any]:
        """Return the options of parts that were given."""
        return dict(self.model_extra or {})

    @property
    def for_parts(self) -> dict[str, Any]:
        """Return the options that parts may declare: those of parts, and those of silos that were changed."""
        return self.given(*SiloOptions.model_fields) | self.part_options

    def given(self, *names: str) -> dict[str, Any]:
        """Return those of the named options that differ from their defaults."""
        defaults = {key: type(self).model_fields[key].default for key in names}
        return {key: getattr(self, key) for key, value in defaults.items() if getattr(self, key) != value}

    @property
    def fishr_reduction(self) -> str:
        """Return how the penalty is reduced over silos; the part calls this option `reduction`."""
        return str(self.part_options.get(FLAT_NAMES["fishr_reduction"], "mean"))

    @model_validator(mode="before")
    @classmethod
    def _options_of_parts(cls, values: Any) -> Any:
        """Refuse a key that is no option of a run or of a part; None stands for the part's own default."""
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

    @field_validator("average", mode="before")
    @classmethod
    def _no_average(cls, value: object) -> object:
        return None if value == "none" else value

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
                "a number for the penalty is now called penalty_weight; penalty is the name of a penalty",
                FedILCWarning,
                stacklevel=2,
            )
            values["penalty_weight"] = values.pop("penalty")
        return values

    @model_validator(mode="before")
    @classmethod
    def _silo_weights_were_weights(cls, values: Any) -> Any:
        """Rename `weights` to `silo_weights`, with a warning: weights are what a network learns."""
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
    """Return settings with each option of a part under the name that the part gives it.

    >>> part_spelling({"seed": 1, "fishr_reduction": "sum"})
    {'seed': 1, 'reduction': 'sum'}
    """
    for flat, name in FLAT_NAMES.items():
        if flat in values and values.get(name, values[flat]) != values[flat]:
            raise PydanticCustomError(
                SENTENCE,
                "{why}",
                {"why": f"{flat} and {name} are the same option but differ; give one of the two"},
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
