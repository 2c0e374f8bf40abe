"""The preprocessing of tables: scaled numbers, one column per category, indicators of missing values.

It follows from sums over silos (counts, values, squares) and the union of their categories, all exact, so
that it does not depend on the order of silos or on how rows are distributed over them.

Cells are parsed first, in `column_values.py`. With `scale = false` there is no preprocessing: numbers are
used as they are, and empty cells are refused (`file_reader.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import sqrt
from statistics import NormalDist
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from torch import Tensor

from fedilc.data.tables.column_values import LARGEST, Kind, column_values, in_order, names_of, numbers_of
from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.silo_summary import (
    MOST_DECLARED,
    MOST_LEVELS,
    ColumnSummary,
    SiloSummary,
    columns_by_silo,
    quantile,
)
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import DataError

# Why a column is left out. Manifests and run folders store these sentences: another text is another run.
CONSTANT = "it has the same value in every row"  # any other value at a new site would be far outside
SAME_DIGITS = "its numbers are the same in the first 15 digits; subtract a constant from it, or drop it"
DATES = "it holds dates or times"
IDENTIFIER = "it differs in every row, or is called, like an identifier"
BEYOND = f"its numbers are infinite or above {LARGEST:.1g}; rescale it"
TOO_SMALL = "its numbers are so close to 0 that their squares are 0; rescale it"
TOO_RARE = "no value of it occurs in {} rows of a silo"
TOO_MANY_NAMES = "it holds more than {} different names"
FENCES = 3  # interquartile ranges from the quartiles to the limits; a normal value beyond has p = 2e-6
_NORMAL_WIDTH = 2 * NormalDist().inv_cdf(0.75)
_NUMBER_SHARE = 0.8
_WHOLE = 2.0**53  # above it, different whole numbers may be one in float64
_LEAST_SQUARE = Fraction(1, 10**280)  # below it, squares in float64 are rounded to few digits or to 0


class NumberFeature(BaseModel):
    """A column of numbers: (value - mean) / scale, and 0 if it is missing.

    With the scaling "robust", `mean` is the median and `scale` the interquartile range of a normal
    distribution with deviation 1; values are first clipped to `low` and `high`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["number"] = "number"
    name: str
    mean: float
    scale: float = Field(gt=0)
    low: float | None = None
    high: float | None = None
    indicator: bool = False

    @model_serializer(mode="wrap")
    def _as_recorded(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the content without limits if there are none: earlier runs recorded none."""
        return {
            key: value for key, value in dump(self).items() if key not in ("low", "high") or value is not None
        }

    def read(self, column: pl.Series, missing: Sequence[str]) -> tuple[Kind, pl.Series]:
        """Return the kind and the values of a column; texts such as <5 are numbers."""
        return column_values(column, missing, "known")

    @property
    def inputs(self) -> list[str]:
        """Return the names of its inputs."""
        return [self.name, *([f"{self.name} missing"] if self.indicator else [])]

    def transform(self, values: pl.Series) -> NDArray[np.float64]:
        """Return the inputs of a column, examples first."""
        numbers = numbers_of(values)
        gaps = numbers.is_null().to_numpy()
        scaled = (self.clipped(numbers.fill_null(self.mean).to_numpy()) - self.mean) / self.scale
        return np.stack([scaled, gaps] if self.indicator else [scaled], axis=1)

    def clipped(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers within the limits, if there are any."""
        return numbers if self.low is None else np.clip(numbers, self.low, self.high)


class CategoryFeature(BaseModel):
    """A column of categories: 1 in the input of its category; an unknown category has 0 everywhere."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["category"] = "category"
    name: str
    categories: tuple[str, ...] = Field(min_length=1)
    indicator: bool = False

    def read(self, column: pl.Series, missing: Sequence[str]) -> tuple[Kind, pl.Series]:
        """Return the kind and the values of a column; texts such as <5 are names."""
        return column_values(column, missing, names=self.categories)

    @property
    def inputs(self) -> list[str]:
        """Return the names of its inputs."""
        named = [f"{self.name}={category}" for category in self.categories]
        return [*named, *([f"{self.name} missing"] if self.indicator else [])]

    def transform(self, values: pl.Series) -> NDArray[np.float64]:
        """Return the inputs of a column, examples first."""
        names = names_of(values)
        held = [(names == category).fill_null(False).to_numpy() for category in self.categories]
        return np.stack([*held, names.is_null().to_numpy()] if self.indicator else held, axis=1)


Feature = Annotated[NumberFeature | CategoryFeature, Field(discriminator="kind")]


class Preprocessing(BaseModel):
    """The conversion of a table's rows to inputs and labels; saved with a run as JSON.

    Attributes:
        label: the rule of the label, and the names of its classes.
        features: the columns that are used, in order.
        missing: further texts or numbers that mean a missing value.
        left_out: the columns that are not used, and why.
        patient_column: the column that names patients, if a patient may have several rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: LabelRule
    features: tuple[Feature, ...] = Field(min_length=1)
    missing: tuple[str, ...] = ()
    left_out: dict[str, str] = Field(default_factory=dict)
    patient_column: str | None = None

    @model_serializer(mode="wrap")
    def _as_recorded(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the content without a column of patients if there is none: earlier runs recorded none."""
        return {key: value for key, value in dump(self).items() if key != "patient_column" or value}

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the model's inputs, in order."""
        return tuple(name for feature in self.features for name in feature.inputs)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Return the shape of one input."""
        return (len(self.columns),)

    def transform(self, frame: pl.DataFrame) -> Tensor:
        """Return the inputs of a table's rows; a column that it does not have is missing in every row."""
        empty = pl.Series("", [None] * len(frame), dtype=pl.Float64)
        parts = []
        for feature in self.features:
            column = frame[feature.name] if feature.name in frame.columns else empty.alias(feature.name)
            _, values = feature.read(column, self.missing)
            parts.append(feature.transform(values))
        return torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32))


def fit_preprocessing(
    summaries: Sequence[SiloSummary], label: LabelRule, settings: TableSettings
) -> Preprocessing:
    """Return the preprocessing that fits the summaries of all silos together."""
    features: list[NumberFeature | CategoryFeature] = []
    left_out: dict[str, str] = {}
    rows = sum(silo.rows for silo in summaries)
    columns = columns_by_silo(summaries)
    for name in (name for name in columns if is_confirmed(name, columns, len(summaries), settings)):
        parts, given = list(columns[name].values()), settings.categories.get(name)
        declared = name in settings.categorical or given is not None
        reason = None if name in settings.keep else _reason(parts, declared)
        made = reason or _feature(name, parts, rows, settings.min_category, declared, given)
        if settings.scaling == "robust" and isinstance(made, NumberFeature):
            made = _robust(made, parts)
        if isinstance(made, str):
            left_out[name] = made
        else:
            features.append(made)
    if not features:
        raise DataError("no column is left to learn from; drop fewer columns, or correct the label")
    return Preprocessing(
        label=label.spelled([silo.labels for silo in summaries]),
        features=tuple(features),
        missing=settings.missing,
        left_out=left_out,
        patient_column=settings.patient_column,
    )


def is_confirmed(
    name: str, columns: Mapping[str, Mapping[str, ColumnSummary]], silos: int, settings: TableSettings
) -> bool:
    """Return whether most silos have a column, or the settings name it: no single silo can add one."""
    is_named = name in (*settings.keep, *settings.columns, *settings.categorical, *settings.categories)
    return is_named or 2 * len(columns[name]) > silos


def _reason(parts: Sequence[ColumnSummary], declared: bool) -> str | None:
    """Return why a column is left out; half of the silos decide, so that no single silo does."""
    if is_identifier_column(parts):
        return IDENTIFIER
    if declared:
        return None
    if all(part.kind in ("empty", "beyond") for part in parts):
        return BEYOND if any(part.kind == "beyond" for part in parts) else "it holds no value"
    filled = [part.kind for part in parts if part.kind != "empty"]
    if 2 * filled.count("date") >= len(filled):
        return DATES
    if 2 * filled.count("other") >= len(filled):
        return "it holds neither numbers nor names"
    return None


def is_identifier_column(parts: Sequence[ColumnSummary]) -> bool:
    """Return whether a column identifies rows at half of the silos, or more, that have 20 rows."""
    large = [part for part in parts if part.count >= 20]
    return bool(large) and 2 * sum(part.identifier for part in large) >= len(large)


def is_number_column(parts: Sequence[ColumnSummary]) -> bool:
    """Return whether a column holds numbers, except for a few texts that count as missing."""
    numbers, strays = sum(part.numbers for part in parts), sum(part.strays for part in parts)
    texts = any(part.kind == "text" for part in parts)
    return numbers > 0 and (not texts or numbers >= _NUMBER_SHARE * (numbers + strays))


def _feature(
    name: str,
    parts: Sequence[ColumnSummary],
    rows: int,
    min_category: int,
    declared: bool,
    given: Sequence[str] | None,
) -> NumberFeature | CategoryFeature | str:
    """Return the feature of a column, or why it cannot be used."""
    present = [part for part in parts if part.kind in ("number", "text")]
    if not present:
        return "it holds no value"
    indicator = sum(part.count for part in present) < rows
    if given is not None:
        names = tuple(names_of(pl.Series(list(given))))
        return CategoryFeature(name=name, categories=names, indicator=indicator)
    if not declared and is_number_column(present):
        if _is_too_small(present):
            return TOO_SMALL
        mean, deviation = _moments(present)
        indicator = sum(part.count if part.identifier else part.numbers for part in present) < rows
        if not (deviation or indicator):
            return CONSTANT if abs(mean) < _WHOLE else SAME_DIGITS
        return NumberFeature(name=name, mean=mean, scale=deviation or 1.0, indicator=indicator)
    most = MOST_DECLARED if declared else MOST_LEVELS
    named = [part for part in present if not part.identifier]
    if not named:
        return IDENTIFIER
    union = {level for part in named for level in part.levels or ()}
    if any(part.levels is None for part in named) or len(union) > most:
        return TOO_MANY_NAMES.format(most)
    if not union:
        return TOO_RARE.format(min_category)
    if len(union) == 1 and not indicator and not any(part.other for part in named):
        return CONSTANT
    return CategoryFeature(name=name, categories=in_order(union), indicator=indicator)


def _robust(feature: NumberFeature, parts: Sequence[ColumnSummary]) -> NumberFeature:
    """Return the feature scaled by median and quartiles, with Tukey's outer fences as limits.

    A column whose quartiles are equal stays as it is: half of its values or more are one number.
    """
    counted: Counter[float] = Counter()
    for part in parts:
        counted.update(dict(part.histogram or ()))
    counts = sorted(counted.items())
    if not counts:
        return feature
    lower, middle, upper = (quantile(counts, part, 4) for part in (1, 2, 3))
    width = upper - lower
    if width == 0:
        return feature
    limits = {"low": lower - FENCES * width, "high": upper + FENCES * width}
    return feature.model_copy(update={"mean": middle, "scale": width / _NORMAL_WIDTH, **limits})


def _is_too_small(parts: Sequence[ColumnSummary]) -> bool:
    """Return whether numbers other than 0 have squares too small to be added."""
    filled = [part for part in parts if part.numbers]
    squares = sum((part.sums[2] for part in filled), Fraction(0))
    return not all(part.zero for part in filled) and squares < _LEAST_SQUARE * sum(p.numbers for p in filled)


def _moments(parts: Sequence[ColumnSummary]) -> tuple[float, float]:
    """Return mean and standard deviation over all silos, each rounded once."""
    count, total, squares = 0, Fraction(0), Fraction(0)
    for part in parts:
        rows, values, squared = part.sums
        count, total, squares = count + rows, total + values, squares + squared
    mean = total / count
    variance = squares / count - mean * mean
    try:
        return float(mean), sqrt(variance) if variance > 0 else 0.0
    except OverflowError as error:
        raise DataError(
            f"the sums of column {parts[0].name!r} are too large for float64; rescale the column"
        ) from error
