"""The label: a column's two values, its classes, a comparison such as num>0, or a number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_validator

from fedilc.algorithms.loss_name import LossName, has_classes
from fedilc.data.tables.column_values import column_values, in_order, names_of, number_of, numbers_of
from fedilc.errors import DataError, listed, nearest

MOST_CLASSES = 20
MOST_LEVELS = 100
_COMPARISON = re.compile(r"^\s*(.+?)\s*(>=|<=|==|!=|>|<)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*$")
_OPPOSITE = {">": "<=", "<=": ">", "<": ">=", ">=": "<", "==": "!=", "!=": "=="}
_HOLDS = {">": np.greater, "<=": np.less_equal, "<": np.less, ">=": np.greater_equal}
_HOLDS |= {"==": np.equal, "!=": np.not_equal}


class LabelRule(BaseModel):
    """The rule that gives each row its label.

    Attributes:
        text: as it was given, for example "died" or "num>0".
        column: the column that it is read from.
        comparison: of that column with `bound`, if the label is whether it holds.
        loss: the kind of task.
        classes: the name of each class, in the order of their numbers; none for a number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    column: str
    comparison: Literal[">", ">=", "<", "<=", "==", "!="] | None = None
    bound: float = 0.0
    loss: LossName = "binary"
    classes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _two_classes(self) -> LabelRule:
        if (self.comparison is not None or self.classes) and self.loss == "binary" and len(self.classes) != 2:
            raise ValueError("a binary label has two classes")
        return self

    @property
    def outputs(self) -> int:
        """Return how many outputs a model of this label has."""
        return len(self.classes) if self.loss == "multiclass" else 1

    @classmethod
    def parse(cls, text: str) -> LabelRule:
        """Return the rule of a text; its classes are found later.

        >>> LabelRule.parse("num>0").column
        'num'
        """
        found = _COMPARISON.match(text)
        if found is None:
            return cls(text=text, column=text)
        column, sign, bound = found.groups()
        classes = (f"{column}{_OPPOSITE[sign]}{bound}", f"{column}{sign}{bound}")
        found_rule = {"text": text, "column": column, "comparison": sign, "bound": bound, "classes": classes}
        return cls.model_validate(found_rule)

    def with_classes(
        self, levels: Sequence[str], positive: str | None = None, loss: LossName | None = None
    ) -> LabelRule:
        """Return the rule with the classes of all silos' values; no values stand for very many numbers."""
        if self.comparison is not None:
            if positive is not None:
                raise DataError(f"--positive {positive!r} has no use beside the label {self.text!r}; drop it")
            return self
        if positive is not None:
            return self._with_positive(levels, positive)
        numbers = [number_of(level) for level in levels]
        numeric = all(number is not None for number in numbers)
        measured = loss is None and numeric and _is_measured(numbers)
        if measured or (loss is not None and not has_classes(loss)):
            if not numeric:
                raise DataError(f"the label {self.text!r} holds text, not numbers; choose another loss")
            return self.model_copy(update={"loss": loss or "regression", "classes": ()})
        if not levels:
            raise DataError(f"the label {self.text!r} has too many different values for classes")
        if len(levels) == 1:
            raise DataError(f"the label {self.text!r} is {levels[0]!r} everywhere; there is nothing to learn")
        ordered = in_order(levels)
        kind: LossName = loss or ("binary" if len(ordered) == 2 else "multiclass")
        if kind == "binary" and len(ordered) > 2:
            raise DataError(
                f"the label {self.text!r} has {len(ordered)} values ({listed(ordered)}); say with --positive "
                "which one counts as 1"
            )
        return self.model_copy(update={"loss": kind, "classes": ordered})

    def _with_positive(self, levels: Sequence[str], positive: str) -> LabelRule:
        name = names_of(pl.Series([positive]))[0]
        if name not in levels:
            raise DataError(f"the label {self.text!r} is never {positive!r}{nearest(name, levels)}")
        others = [level for level in levels if level != name]
        if not others:
            raise DataError(f"the label {self.text!r} is {positive!r} everywhere; there is nothing to learn")
        other = others[0] if len(others) == 1 else f"not {name}"
        return self.model_copy(update={"loss": "binary", "classes": (other, name)})

    @staticmethod
    def labelled_rows(
        frame: pl.DataFrame, column: str, missing: Sequence[str] = ()
    ) -> tuple[pl.DataFrame, pl.Series]:
        """Return the rows that have a label, without it, and their labels."""
        _, label = column_values(frame[column], missing)
        known = label.is_not_null()
        return frame.filter(known).drop(column), label.filter(known)

    def levels(self, column: pl.Series) -> dict[str, int]:
        """Return how often each value of the label occurs; none if they are too many to be classes."""
        names = names_of(column)
        if self.comparison is not None:
            names = pl.Series([self.classes[holds] for holds in self._compared(column)])
        counts = names.alias("level").value_counts(name="rows")
        if len(counts) > MOST_LEVELS:
            return {}
        return {str(name): int(rows) for name, rows in sorted(counts.iter_rows())}

    def own_scores(self, column: pl.Series, positive: str | None) -> NDArray[Any] | None:
        """Return the labels of one silo as 0 and 1, if it has two; it may not know the others' classes."""
        try:
            rule = self.with_classes(list(self.levels(column)), positive)
        except DataError:  # one class only
            return None
        return rule.encode(column) if rule.loss == "binary" else None

    def encode(self, column: pl.Series) -> NDArray[Any]:
        """Return 0/1, class numbers or numbers; every cell has a value."""
        if self.comparison is not None:
            return self._compared(column)
        if not has_classes(self.loss):
            values = numbers_of(column)
            if values.null_count():
                raise DataError(f"the label {self.text!r} holds text, not numbers")
            return values.to_numpy().astype(np.float32)
        names = names_of(column)
        if self.loss == "binary" and self.classes[0] == f"not {self.classes[1]}":
            return (names == self.classes[1]).to_numpy().astype(np.int64)
        codes = {name: code for code, name in enumerate(self.classes)}
        unknown = [name for name in names.unique(maintain_order=True) if name not in codes]
        if unknown:
            raise DataError(
                f"the label {self.text!r} holds {unknown[0]!r}, which is none of its classes: "
                f"{listed(self.classes, 8)}"
            )
        return names.replace_strict(codes, return_dtype=pl.Int64).to_numpy().copy()

    def _compared(self, column: pl.Series) -> NDArray[Any]:
        values = numbers_of(column)
        if values.null_count():
            text = column.filter(values.is_null())[0]
            raise DataError(f"the label {self.text!r} compares numbers, and {self.column!r} holds {text!r}")
        holds: NDArray[np.bool_] = _HOLDS[self.comparison or "=="](values.to_numpy(), self.bound)
        return holds.astype(np.int64)


def _is_measured(numbers: Sequence[float | None]) -> bool:
    """Return whether numbers are measurements rather than classes."""
    if len(numbers) <= 2:
        return not numbers
    return len(numbers) > MOST_CLASSES or any(n is not None and n != round(n) for n in numbers)
