"""The survey of tables in secure sums: what all silos' tables hold together, and no table's own summary.

Sums have no names, so that the experiment names columns and categories. Flags are summed first: how many
silos have values, or an identifier, in a column. Then follow counts, sums and squares of columns of which at
least three silos have values. A summary made of the totals gives the preprocessing that all silos' own
summaries would give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fedilc.algorithms.loss_registry import has_classes
from fedilc.data.tables.column_values import Kind
from fedilc.data.tables.label_rule import LabelRule, folded_label
from fedilc.data.tables.preprocessing import Preprocessing, fit_preprocessing, is_number_column
from fedilc.data.tables.silo_summary import ColumnSummary, SiloSummary
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import ConfigError, DataError, ProtocolError, listed
from fedilc.federation.program import SECURE_MIN_SIDE

KINDS: tuple[Kind, ...] = get_args(Kind)
_FLAGS = len(KINDS) + 4
_LARGE = 20  # values from which on the values of a column can be like those of an identifier
# Sums are whole numbers of 2^-220: exact for float64 from 2^-57 on. 15 digits of 32 bits hold 2^259, which is
# more than 100 silos' sums of squares of float32.
_UNIT, DIGITS = 220, 15
_BITS, _DIGIT = 32 * DIGITS, (1 << 32) - 1
FEW = f"fewer than {SECURE_MIN_SIDE} silos have values of it, and secure sums hide them"


@dataclass(frozen=True)
class SurveyForm:
    """How summaries become words.

    Args:
        table: the settings of the run, which name columns, categories and the label's classes.
    """

    table: TableSettings

    @property
    def rule(self) -> LabelRule:
        """Return the rule of the label, without its classes."""
        return LabelRule.parse(self.table.label)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that may be inputs."""
        named = (*self.table.columns, *self.table.keep, *self.table.categorical, *self.table.categories)
        return tuple(c for c in dict.fromkeys(named) if c != self.rule.column and self.table.uses(c))

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the values of the label; none if it is a number."""
        return self.rule.classes or tuple(self.table.categories.get(self.rule.column, ()))

    def require_declared(self) -> None:
        """Raise if the settings leave to the silos what sums cannot tell."""
        table, rule = self.table, self.rule
        if not table.columns:
            raise ConfigError(
                "secure sums have no names: list the columns of the tables in data.columns, the label too"
            )
        if table.scaling != "moments":
            raise ConfigError("scaling='robust' needs each silo's own histogram; use scaling='moments'")
        if not self.classes and (table.loss is None or has_classes(table.loss)):
            raise ConfigError(
                f"secure sums have no names: list the label's classes in data.categories.{rule.column}, or "
                "choose a loss for numbers"
            )
        open_ones = [name for name in table.categorical if name not in table.categories]
        if open_ones:
            raise ConfigError(
                f"secure sums have no names: list the categories of {listed(open_ones)} in data.categories"
            )

    def flags(self, summary: SiloSummary) -> NDArray[np.uint32]:
        """Return what a silo has of each column, and of each class of the label, as 0 and 1."""
        known = {folded_label(name) for name in self.classes}
        other = [name for name in summary.labels if folded_label(name) not in known]
        if other and self.classes:
            raise ConfigError(
                f"the label has the value {other[0]!r} here, and data.categories.{self.rule.column} does "
                "not list it; ask the operator to list all classes, or correct the table"
            )
        own = {folded_label(name) for name in summary.labels}
        found = [folded_label(name) in own for name in self.classes]
        for name in self.columns:
            column = summary.column(name)
            found += [False] * _FLAGS if column is None else _flags(column)
        return np.array(found, np.uint32)

    def kept(self, flags: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Return of which columns values are counted, and of which numbers are summed."""
        by_column = self._by_column(flags)
        return (by_column[:, [-4, -3]] >= SECURE_MIN_SIDE).reshape(-1)

    def values(self, summary: SiloSummary, kept: NDArray[np.bool_]) -> NDArray[np.uint64]:
        """Return rows, and of the kept columns counts and sums."""
        found = [summary.rows, summary.unlabelled]
        for name, (counted, summed) in zip(self.columns, kept.reshape(-1, 2), strict=True):
            column = summary.column(name)
            if counted:
                filled = column is not None and _is_filled(column)
                found += [column.count, column.strays] if column is not None and filled else [0, 0]
            if summed:
                numbers, total, squares = (0, Fraction(0), Fraction(0)) if column is None else column.sums
                found += [numbers, *digits_of(total), *digits_of(squares)]
        return np.array(found, np.uint64)

    def words(self, kept: NDArray[np.bool_] | None) -> int:
        """Return how many words flags have, or values if these columns are kept."""
        if kept is None:
            return len(self.classes) + _FLAGS * len(self.columns)
        counted, summed = kept.reshape(-1, 2).sum(0)
        return 2 + 2 * int(counted) + (1 + 2 * DIGITS) * int(summed)

    def summary(
        self, flags: NDArray[np.uint32], kept: NDArray[np.bool_], values: NDArray[np.uint64]
    ) -> SiloSummary:
        """Return the summary of all silos together; its label's values have no counts."""
        words = iter(values.tolist())
        rows, unlabelled = next(words), next(words)
        columns = []
        for place, (name, own) in enumerate(zip(self.columns, self._by_column(flags).tolist(), strict=True)):
            counted, summed = kept[2 * place : 2 * place + 2]
            found = {"count": next(words), "strays": next(words)} if counted else {"count": 0}
            sums = {}
            if summed:
                numbers, total, squares = next(words), whole_of(words), whole_of(words)
                sums = {"numbers": numbers, "total": str(total), "squares": str(squares)}
                sums["zero"] = not squares
            kind = _kind(own) if counted else "empty"
            identifier = own[-2] > 0 and 2 * own[-1] >= own[-2]
            columns.append(
                ColumnSummary.model_validate(
                    {"name": name, "place": place, "kind": kind, "identifier": identifier, **found, **sums}
                )
            )
        labels = {name: 0 for name, silos in zip(self.classes, flags.tolist(), strict=False) if silos}
        return SiloSummary(
            name="all silos", rows=rows, unlabelled=unlabelled, labels=labels, columns=tuple(columns)
        )

    def preprocessing(self, summary: SiloSummary) -> Preprocessing:
        """Return the preprocessing that follows from the summary of all silos together."""
        table = self.table
        missed = [column.name for column in summary.columns if column.kind == "empty"]
        names = [
            column.name
            for column in summary.columns
            if column.kind == "text"
            and column.name not in table.categories
            and not (column.identifier or is_number_column([column]))
        ]
        if names:
            raise DataError(
                f"the columns {listed(names)} hold names, which sums cannot tell: list their categories in "
                "data.categories, or leave them out of data.columns"
            )
        used = summary.model_copy(update={"columns": [c for c in summary.columns if c.name not in missed]})
        made = fit_preprocessing([used], table.rule([summary.labels] if summary.labels else []), table)
        return made.model_copy(update={"left_out": made.left_out | dict.fromkeys(missed, FEW)})

    def _by_column(self, flags: NDArray[np.uint32]) -> NDArray[np.uint32]:
        return flags[len(self.classes) :].reshape(-1, _FLAGS)


def _is_filled(column: ColumnSummary) -> bool:
    return column.kind in ("number", "text") and column.count > 0


def _flags(column: ColumnSummary) -> Sequence[bool]:
    large = column.count >= _LARGE
    kinds = [column.kind == kind for kind in KINDS]
    return [*kinds, _is_filled(column), column.numbers > 0, large, large and column.identifier]


def _kind(silos: Sequence[int]) -> Kind:
    """Return the kind of a column from how many silos have which; half of them decide."""
    by_kind = dict(zip(KINDS, silos, strict=False))
    filled = sum(by_kind.values()) - by_kind["empty"] - by_kind["beyond"]
    for kind in ("date", "other"):
        if 2 * by_kind[kind] >= filled:
            return kind
    return "text" if by_kind["text"] else "number"


def digits_of(value: Fraction) -> list[int]:
    """Return a sum in its unit as digits of 32 bits, modulo 2^480."""
    whole = round(value * (1 << _UNIT)) % (1 << _BITS)
    return [whole >> 32 * place & _DIGIT for place in range(DIGITS)]


def whole_of(words: Iterator[int]) -> Fraction:
    """Return the sum whose digits were added up."""
    whole = sum(next(words) << 32 * place for place in range(DIGITS)) % (1 << _BITS)
    if whole >> (_BITS - 1):
        whole -= 1 << _BITS
    if abs(whole) >= 1 << (_BITS - 2):
        raise ProtocolError("a sum of the survey is larger than that of any tables")
    return Fraction(whole, 1 << _UNIT)
