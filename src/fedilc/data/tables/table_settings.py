"""How tables are read: settings of the section [data] and of `fedilc study`, which silos receive too.

This file loads neither torch nor polars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from fedilc.algorithms.loss_registry import LossName
from fedilc.errors import DataError, nearest
from fedilc.section import Section

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from fedilc.data.tables.label_rule import LabelRule

MOST_ROWS = 10**9
Scaling = Literal["moments", "robust"]


class LabelledRows(NamedTuple):
    """The rows of a table that have a label.

    Attributes:
        features: their columns without label and patients.
        label: one cell per row.
        unlabelled: how many other rows there are.
        patients: whose each row is, by number; None if no patient has several.
    """

    features: pl.DataFrame
    label: pl.Series
    unlabelled: int
    patients: NDArray[np.intp] | None = None


class TableSettings(Section):
    """How tables are read, which is the same for every silo of a run."""

    label: str = Field(description="the column that holds the label, or a comparison such as 'num>0'")
    positive: str | None = Field(default=None, description="the value of the label that counts as 1")
    categorical: tuple[str, ...] = Field(
        default=(), description="columns whose numbers are names of categories"
    )
    drop: tuple[str, ...] = Field(default=(), description="columns to leave out")
    keep: tuple[str, ...] = Field(
        default=(), description="columns to use although they look like identifiers"
    )
    categories: dict[str, list[str]] = Field(
        default={}, description="the categories of some columns, or the label's classes"
    )
    missing: tuple[str, ...] = Field(
        default=(), description="further values that mean missing: '-9', or 'chol=0'"
    )
    loss: LossName | None = Field(default=None, description="the kind of task; by default the label decides")
    columns: tuple[str, ...] = Field(
        default=(), description="the only columns to use; by default all but the dropped ones"
    )
    min_category: int = Field(
        default=10,
        ge=1,
        description="how many rows of a silo a category or a sum needs; rarer ones are 'other'",
    )
    min_rows: int = Field(
        default=50, ge=1, description="how many rows a summary needs; smaller local tables keep rare values"
    )
    round_survey: int | None = Field(
        default=None, ge=2, le=MOST_ROWS, description="the unit to which silos round counts and sums"
    )

    patient_column: str | None = Field(
        default=None,
        repr=False,  # digests of studies' runs are made of this text, and tables without it stay the same
        description="the column that names patients, if a patient may have several rows; it is no input",
    )
    scaling: Scaling = Field(
        default="moments",
        repr=False,
        description="moments: mean and standard deviation; robust: median and quartiles, tails clipped",
    )

    @model_serializer(mode="wrap")
    def _as_recorded(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the settings without those that earlier runs did not record, unless they are used."""
        unused = {"patient_column": None, "scaling": "moments"}
        return {key: value for key, value in dump(self).items() if key not in unused or value != unused[key]}

    def settings(self) -> TableSettings:
        """Return these settings alone, without those of the source that they are part of."""
        return TableSettings(**{name: getattr(self, name) for name in TableSettings.model_fields})

    def for_local(self, rows: int) -> TableSettings:
        """Return the settings of a local table: one of fewer than `min_rows` rows would not be sent."""
        return self if rows >= self.min_rows else self.model_copy(update={"min_category": 1})

    def rule(self, levels: Sequence[Mapping[str, int]]) -> LabelRule:
        """Return the label's rule for the values that occur in each silo."""
        from fedilc.data.tables.label_rule import LabelRule, merged_levels

        rule = LabelRule.parse(self.label)
        rows = merged_levels(levels) if all(levels) else {}
        return rule.with_classes(rows, self.positive, self.loss, self.categories.get(rule.column, ()))

    def split_label(self, name: str, frame: pl.DataFrame) -> LabelledRows:
        """Return features, label and patients of the rows that have a label, and how many do not."""
        from fedilc.data.tables.label_rule import LabelRule

        column = LabelRule.parse(self.label).column
        if column not in frame.columns:
            raise DataError(f"silo {name!r} has no label column {column!r}{nearest(column, frame.columns)}")
        rows, label = LabelRule.labelled_rows(frame, column, self.missing)
        if not len(label):
            raise DataError(f"silo {name!r} has no row with a label; remove its rows, or fill in the label")
        features = rows.select(name for name in rows.columns if self.uses(name))
        patients = None
        if self.patient_column is not None:
            from fedilc.data.tables.patients import patient_numbers

            patients = patient_numbers(rows, self.patient_column, f"silo {name!r}")
        return LabelledRows(features, label, len(frame) - len(label), patients)

    def uses(self, column: str) -> bool:
        """Return whether a column may be an input, as far as columns are dropped or named."""
        if column == self.patient_column:
            return False
        return column not in self.drop and (not self.columns or column in self.columns)
