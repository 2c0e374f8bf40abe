"""The settings of a run besides its data, model and algorithm. This file needs no torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import inf
from typing import Any, Literal, TypedDict

from pydantic import Field, PositiveInt, field_validator, model_validator

from fedilc.algorithms.algorithm import WEIGHTS
from fedilc.config.section import Section
from fedilc.errors import FedILCWarning

Balance = Literal["weights", "oversample"]


class Options(Section):
    """Every setting of a run beside its data, model and algorithm; `train` explains each in full."""

    rounds: int = Field(ge=1, description="how many steps the server takes")
    learning_rate: float = Field(gt=0, description="of the server's optimiser")
    weight_decay: float = Field(0.0, ge=0, description="of the server's optimiser; Adam's is its L2 form")
    penalty: str | None = Field(None, description="what silos match; none is the algorithm's own")
    penalty_weight: float = Field(1.0, ge=0, description="lambda, the weight of the penalty")
    inter: str | None = Field(None, description="how silos become one; none is the algorithm's own")
    environment_size: int | None = Field(None, ge=1, description="in examples; none is the whole silo")
    seed: int = Field(0, ge=0, description="every random choice derives from it")
    weights: str | dict[str, float] | None = Field(None, description="of silos: a rule, or a number each")
    weights_step: float = Field(0.01, gt=0, description="step size of the weights group-dro and afl")
    weights_power: float = Field(1.0, ge=0, description="q of the weights q-ffl")
    local_steps: int | None = Field(None, ge=1, description="steps of each silo per round")
    local_epochs: int | None = Field(None, ge=1, description="passes over a silo's examples per round")
    batch_size: PositiveInt | Literal["all"] | None = Field(
        None, description="examples per local step, or all; none is the algorithm's"
    )
    local_optimizer: str | None = Field(None, description="of local steps")
    local_learning_rate: float | None = Field(None, gt=0, description="of local steps")
    proximal: float | None = Field(None, ge=0, description="mu of FedProx, in local steps")
    optimizer: str | None = Field(None, description="of the server; none is the algorithm's own")
    optimizer_options: dict[str, Any] = Field({}, description="of that optimiser, such as momentum")
    learning_rate_schedule: Literal["constant", "step", "cosine"] = Field(
        "constant", description="how the server's rate changes by round"
    )
    warmup_rounds: int = Field(0, ge=0, description="first rounds in which the server's rate rises")
    decay_rounds: int | None = Field(None, ge=1, description="rounds between steps; none is a third of all")
    decay_factor: float = Field(0.1, gt=0, le=1, description="of the rate at each such step")
    balance: Balance | None = Field(None, description="how classes of a silo come to count equally")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    zeros: Literal["ignore", "strict", "authors"] = Field("ignore", description="how wgm counts a zero")
    agreement: float | None = Field(None, ge=0, le=1, description="least |mean(sign)| of a coordinate")
    min_side: int | None = Field(None, ge=1, description="least values of one sign for wgm; none is 1")
    trim: float | None = Field(
        None, gt=0, lt=0.5, description="share of silos that trimmed-mean drops at each end; none is 0.2"
    )
    covariance: Literal["diagonal", "full"] = Field("diagonal", description="that Fishr matches")
    fishr_reduction: Literal["mean", "sum"] = Field("mean", description="of the penalty over silos")
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
    max_norm: float | None = Field(None, gt=0, description="clip each silo's answers to this norm")
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations")
    classifier: str | None = Field(
        None, description="the layer that gives the logits, for Fishr and CORAL; none: it is found"
    )
    thresholded_batch: int | None = Field(
        None, ge=2, description="report areas of thresholded predictions too, in batches of this many"
    )

    def quorum(self, silos: int) -> int:
        """Return how many silos a round needs at least: `min_silos`, or all that a round asks."""
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


class TrainOptions(TypedDict, total=False):
    """Further options of `train`; the docstring of `train` explains each."""

    penalty: str | None
    inter: str | None
    weights_step: float
    weights_power: float
    local_steps: int | None
    local_epochs: int | None
    batch_size: PositiveInt | Literal["all"] | None
    local_optimizer: str | None
    local_learning_rate: float | None
    proximal: float | None
    optimizer: str | None
    optimizer_options: dict[str, Any]
    learning_rate_schedule: Literal["constant", "step", "cosine"]
    warmup_rounds: int
    decay_rounds: int | None
    decay_factor: float
    zeros: Literal["ignore", "strict", "authors"]
    agreement: float | None
    min_side: int | None
    trim: float | None
    covariance: Literal["diagonal", "full"]
    fishr_reduction: Literal["mean", "sum"]
    penalty_anneal_rounds: int
    penalty_start: float
    min_silos: int | None
    silos_per_round: int | None
    on_divergence: Literal["stop", "exclude"]
    outlier_factor: float
    max_norm: float | None
    evaluate_every: int
    classifier: str | None
    thresholded_batch: int | None
