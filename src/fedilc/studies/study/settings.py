"""The settings of a study, and the usual ones for tables, images and features of pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from fedilc.data.tables.table_settings import Scaling
from fedilc.errors import ConfigError
from fedilc.section import first_mistake
from fedilc.studies.study.data import StudyData

ALGORITHMS = ("fedavg", "fedsgd", "fishr-inter-geo", "fishr-intra-geo", "agreed-geometric")

ChooseBy = Literal["silo", "validation"]
Threshold = Annotated[float, Field(gt=0, lt=1)]
Primary = Literal["auroc", "log_loss"]
Average = Literal["none", "ema"]
Rates = Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
Widths = tuple[PositiveInt, ...]


@dataclass(frozen=True)
class StudySettings:
    """The settings of a study.

    Attributes:
        algorithms: by name; the first of "fedavg", "fedsgd" among them, or else the first, is the reference.
        hold_out: the silos to leave out in turn; () is every one.
        seeds: how many; each draws other first weights.
        rounds: the most rounds that a model is trained; fewer are used if they score better.
        learning_rates: learning rates to choose from.
        local_learning_rates: the same for the silos' own steps, in algorithms with such steps and a rate of
            the server of their own (fedavg).
        penalty_weights: lambdas to choose from, in algorithms with a penalty.
        weight_decays: ridges per example to choose from, in regressions.
        scalings: how numbers of tables may be scaled: "moments" (mean and standard deviation) or "robust"
            (median and quartiles, tails clipped).
        networks: widths of hidden layers to choose from besides `hidden`; () among them is a linear network.
        geometric_networks: the same in methods with a geometric mean across silos and no penalty, besides
            the network that is chosen for all: they help most where a model is linear.
        network_decays: weight decays to choose from, in networks; the first is the usual one.
        averages: averages of the weights over rounds to choose from, in networks; the first is the usual one.
        environment_size: of algorithms that aggregate inside a silo.
        model: the network: "mlp", "linear", "cnn", another registered name, or "module:function", which takes
            the shape of an input and the number of outputs; None is "mlp" for tables and "cnn" for images.
        hidden: the widths of the hidden layers of "mlp"; () is none of them.
        primary: the score that decides, "auroc" or "log_loss"; None is the first one of the task.
        choose_by: "silo" or "validation"; None is "silo", or "validation" if there are fewer than four silos.
        references: whether comparators are trained too: a federated regression, which is then one of the
            algorithms, a constant, models of a site's own data, and models of pooled data.
        thresholds: risks at which the net benefit of binary predictions is tabulated.
        subgroups: columns of tables, or comparisons such as "age>=65", by which scores are given too.
        sensitivity: whether to do the runs once more without indicators of missing values, for tables.
        choosing_rows: how many examples of each silo settings are chosen on at most; None is all, or 5,000 of
            tables with more than 20,000 rows.
    """

    algorithms: Annotated[tuple[str, ...], Field(min_length=1)] = ALGORITHMS
    hold_out: tuple[str, ...] = ()
    seeds: PositiveInt = 3
    rounds: PositiveInt = 100
    learning_rates: Rates = (0.003, 0.01, 0.03)
    local_learning_rates: Rates = (0.01, 0.03, 0.1)
    penalty_weights: Rates = (1.0, 100.0)
    weight_decays: Rates = (0.0001, 0.001, 0.01, 0.1, 1.0)
    scalings: Annotated[tuple[Scaling, ...], Field(min_length=1)] = ("moments", "robust")
    networks: tuple[Widths, ...] = ()
    geometric_networks: tuple[Widths, ...] = ((),)
    network_decays: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)] = (0.0, 0.01)
    averages: Annotated[tuple[Average, ...], Field(min_length=1)] = ("none",)
    environment_size: PositiveInt = 32
    model: str | None = None
    hidden: Widths | None = (32,)
    primary: Primary | None = None
    choose_by: ChooseBy | None = None
    references: bool = True
    thresholds: Annotated[tuple[Threshold, ...], Field(min_length=1)] = (0.1, 0.2, 0.3, 0.5)
    subgroups: tuple[str, ...] = ()
    sensitivity: bool = False
    choosing_rows: PositiveInt | None = None

    # Settings in TOML and in plan files have keys of their own, and unknown ones are mistakes.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    def with_given(self, given: Mapping[str, Any], where: str = "") -> StudySettings:
        """Return the settings with those that are given, by name, in place of these; raise on a mistake.

        If the network is given, there are no others to choose from, unless they are given too.

        >>> StudySettings().with_given({"round": 5}, "study")
        Traceback (most recent call last):
        fedilc.errors.ConfigError: the key 'study.round' is unknown; did you mean 'rounds'?
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        named = given.keys() & {"model", "hidden"}
        fixed = dict.fromkeys(("networks", "geometric_networks"), ()) if named else {}
        try:
            return TypeAdapter(StudySettings).validate_python({**values, **fixed, **given})
        except ValidationError as error:
            raise ConfigError(first_mistake(error, values, where)) from error


IMAGES = StudySettings(
    rounds=30,
    learning_rates=(0.001,),
    local_learning_rates=(0.03,),
    penalty_weights=(1.0,),
    hidden=None,
    network_decays=(0.0,),
)  # a convolutional network costs a thousand times as much as a small one for tables
FEATURES = StudySettings(
    model="linear", hidden=None, learning_rates=(0.003,), network_decays=(0.1, 0.0, 1.0)
)  # of a pretrained network: a head of a thousand weights per class overfits a few hundred pictures. With a
# larger rate the best round comes while its weights still swing, and is not the best at another style.


def usual_settings(data: StudyData, given: Mapping[str, Any]) -> StudySettings:
    """Return the settings of a study of these data; a head has hidden layers if their widths are given."""
    if data.backbone is not None:
        return replace(FEATURES, model="mlp") if given.get("hidden") is not None else FEATURES
    return StudySettings() if data.is_table else IMAGES
