"""The label: a column's two values, its classes, a comparison such as num>0, or a number."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_validator

from fedilc.algorithms.loss_registry import LossName, has_classes, task_of
from fedilc.data.tables.column_values import column_values, in_order, names_of, number_of, numbers_of
from fedilc.errors import DataError, listed, nearest, option

MOST_CLASSES = 20
MOST_LEVELS = 100
_RARE = 0.01
_FEW, _FEW_SHARE = 10, 0.05  # no site can score a class with fewer rows
_COMPARISON = re.compile(r"^\s*(.+?)\s*(>=|<=|==|!=|>|<)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*$")
_OPPOSITE = {">": "<=", "<=": ">", "<": ">=", ">=": "<", "==": "!=", "!=": "=="}
_HOLDS = {">": np.greater, "<=": np.less_equal, "<": np.less, ">=": np.greater_equal}
_HOLDS |= {"==": np.equal, "!=": np.not_equal}
# Words without accents for yes and no in common languages, and for outcomes.
_POSITIVE = """
y yes ja oui si sim da tak ano igen evet kylla nai да ναι 是 はい true + pos positive positiv positif
positivo positiva dead died death deceased expired mort decede decedee tot verstorben gestorben fallecido
fallecida muerto muerta morto morta obito case event present abnormal diseased sick ill krank malade enfermo
malignant relapse recurrence readmitted
"""
_NEGATIVE = """
n no nein non nao ne nie nee nej nei nem nu ei hayır ochi нет не όχι οχι 否 いいえ false - neg negative
negativ negatif negativo negativa alive survived survivor living lebend vivant vivo viva control none absent
normal healthy gesund sain sano benign
"""


class LabelRule(BaseModel):
    """The rule that gives each row its label.

    Attributes:
        text: the rule as it was given, for example "died" or "num>0".
        column: the column that the label is read from.
        comparison: how that column is compared with `bound`; the label is whether the comparison holds.
        loss: the kind of task.
        classes: the name of each class, in the order of their numbers; empty if the label is a number.
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
        if (
            (self.comparison is not None or self.classes)
            and task_of(self.loss) == "binary"
            and len(self.classes) != 2
        ):
            raise ValueError("a binary label has two classes")
        return self

    @property
    def outputs(self) -> int:
        """Return how many outputs a model of this label has."""
        return len(self.classes) if task_of(self.loss) == "multiclass" else 1

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
        self,
        rows: Mapping[str, int],
        positive: str | None = None,
        loss: LossName | None = None,
        declared: Sequence[str] = (),
    ) -> LabelRule:
        """Return the rule with the classes of all silos' values.

        Args:
            rows: how many rows have each value; empty if there are very many numbers.
            positive: the value that counts as 1.
            loss: the kind of task; without it, the values decide.
            declared: all classes in order, if the user named them.
        """
        levels = list(label_names(pl.Series(list(declared)))) if declared else list(rows)
        if self.comparison is not None:
            if positive is not None:
                raise DataError(
                    f"`positive` {positive!r} cannot be combined with the label {self.text!r}; leave it out"
                )
            return self._of_loss(loss)
        if positive is not None:
            return self._with_positive(list(rows), positive)._of_loss(loss)
        measured = loss is None and not declared and self.is_number(levels, loss)
        if measured or (loss is not None and not has_classes(loss)):
            if any(number_of(level) is None for level in levels):
                raise DataError(f"the label {self.text!r} holds text, not numbers; choose another loss")
            return self.model_copy(update={"loss": loss or "regression", "classes": ()})
        if not levels:
            raise DataError(f"the label {self.text!r} has too many different values for classes")
        if len(levels) == 1:
            raise DataError(f"the label {self.text!r} is {levels[0]!r} everywhere; there is nothing to learn")
        ordered = tuple(levels) if declared else _zero_first(in_order(levels))
        if loss is None and not declared:
            self._ask_about_rare_values(rows)
        kind: LossName = loss or ("binary" if len(ordered) == 2 else "multiclass")
        if task_of(kind) == "binary" and len(ordered) > 2:
            raise DataError(
                f"the label {self.text!r} has {len(ordered)} values ({listed(ordered)}); name the one that "
                "counts as 1 with `positive`"
            )
        return self.model_copy(update={"loss": kind, "classes": ordered})

    def _of_loss(self, loss: LossName | None) -> LabelRule:
        """Return a rule of two classes with a loss for such labels, if one is given."""
        if loss is None or task_of(loss) != "binary":
            return self
        return self.model_copy(update={"loss": loss})

    def is_number(self, levels: Iterable[str], loss: LossName | None) -> bool:
        """Return whether values of a label are measurements rather than classes; a given loss decides."""
        if self.comparison is not None:
            return False
        if loss is not None:
            return not has_classes(loss)
        numbers = [number_of(level) for level in levels]
        return all(number is not None for number in numbers) and _is_measured(numbers)

    def _ask_about_rare_values(self, rows: Mapping[str, int]) -> None:
        """Raise if a third value is too rare to be a class: it is probably a code for missing labels."""
        total = sum(rows.values())
        few = max(_RARE * total, min(_FEW, _FEW_SHARE * total))
        rare = [name for name, count in rows.items() if count < few]
        common = [name for name in rows if name not in rare]
        if not rare or not 3 <= len(rows) <= MOST_CLASSES or not 1 <= len(common) <= 2:
            return
        every = in_order(rows)
        missing = option("missing", [f"{self.column}={','.join(rare)}"])
        positive, classes = option("positive", common[-1]), option("categories", {self.column: every})
        counts = listed([f"{name} in {rows[name]}" for name in every], 8)
        verb = "is" if len(rare) == 1 else "are"
        raise DataError(
            f"the label {self.column!r} is {counts} of {sum(rows.values())} rows, and {listed(rare, 8)} "
            f"{verb} too rare to be a class; use {missing} if such rows have no label, {positive} if all "
            f"other values count as 0, or {classes} if each value is a class"
        )

    def _with_positive(self, levels: Sequence[str], positive: str) -> LabelRule:
        wanted = folded_label(label_names(pl.Series([positive]))[0])
        name = next((level for level in levels if folded_label(level) == wanted), None)
        if name is None:
            raise DataError(f"the label {self.text!r} is never {positive!r}{nearest(positive, levels)}")
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
        """Return how often each value of the label occurs; nothing if they are too many to be classes.

        Texts that differ only in case or outer spaces are one value.
        """
        names = label_names(column)
        if self.comparison is not None:
            names = pl.Series([self.classes[holds] for holds in self._compared(column)])
        counts = names.alias("level").value_counts(name="rows")
        if len(counts) > MOST_LEVELS:
            return {}
        return merged_levels([dict(counts.iter_rows())])

    def spelled(self, silos: Iterable[Mapping[str, int]]) -> LabelRule:
        """Return the rule with its classes spelled as in most rows of these silos, which train."""
        names = {folded_label(name): name for name in merged_levels(silos)}
        classes = [names.get(folded_label(name), name) for name in self.classes]
        if self._is_against_others:
            classes[0] = f"not {classes[1]}"
        return self.model_copy(update={"classes": tuple(classes)})

    @property
    def _is_against_others(self) -> bool:
        return (
            task_of(self.loss) == "binary"
            and len(self.classes) == 2
            and self.classes[0] == f"not {self.classes[1]}"
        )

    def class_rows(self, levels: Mapping[str, int]) -> list[int]:
        """Return how many rows have each class, from the rows of each value of a silo's label."""
        rows = {folded_label(name): count for name, count in levels.items()}
        return [rows.get(folded_label(name), 0) for name in self.classes]

    def own_scores(self, column: pl.Series, positive: str | None) -> NDArray[Any] | None:
        """Return the labels of one silo as 0 and 1, if it has two; it may not know the others' classes."""
        try:
            rule = self.with_classes(self.levels(column), positive)
        except DataError:  # one class only
            return None
        return rule.encode(column) if task_of(rule.loss) == "binary" else None

    def encode(self, column: pl.Series) -> NDArray[Any]:
        """Return 0/1, class numbers or numbers; every cell has a value."""
        if self.comparison is not None:
            return self._compared(column)
        if not has_classes(self.loss):
            values = numbers_of(column)
            if values.null_count():
                raise DataError(f"the label {self.text!r} holds text, not numbers")
            return values.to_numpy().astype(np.float32)
        names = label_names(column)
        codes = {folded_label(name): code for code, name in enumerate(self.classes)}
        different = names.unique(maintain_order=True).to_list()
        if self._is_against_others:
            codes = {
                folded_label(name): int(folded_label(name) == folded_label(self.classes[1]))
                for name in different
            }
        unknown = [name for name in different if folded_label(name) not in codes]
        if unknown:
            raise DataError(
                f"the label {self.text!r} holds {unknown[0]!r}, which is none of its classes: "
                f"{listed(self.classes, 8)}"
            )
        places = [codes[folded_label(name)] for name in different]
        return names.replace_strict(different, places, return_dtype=pl.Int64).to_numpy().copy()

    def _compared(self, column: pl.Series) -> NDArray[Any]:
        values = numbers_of(column)
        if values.null_count():
            text = column.filter(values.is_null())[0]
            raise DataError(f"the label {self.text!r} compares numbers, but {self.column!r} holds {text!r}")
        holds: NDArray[np.bool_] = _HOLDS[self.comparison or "=="](values.to_numpy(), self.bound)
        return holds.astype(np.int64)


def _is_measured(numbers: Sequence[float | None]) -> bool:
    """Return whether numbers are measurements rather than classes."""
    if len(numbers) <= 2:
        return not numbers
    return len(numbers) > MOST_CLASSES or any(n is not None and n != round(n) for n in numbers)


def label_names(column: pl.Series) -> pl.Series:
    """Return a label's values as names; true and false are 1 and 0, as in a file that has no other text."""
    names = names_of(column)
    return names.set(names.str.to_lowercase() == "true", "1").set(names.str.to_lowercase() == "false", "0")


def merged_levels(silos: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the rows of each value over silos; a value is spelled as in most of its rows.

    >>> merged_levels([{"yes": 3, "Yes": 4}, {"YES": 1, "no": 5}])
    {'Yes': 8, 'no': 5}
    """
    spellings: dict[str, dict[str, int]] = {}
    for levels in silos:
        for name, rows in levels.items():
            found = spellings.setdefault(folded_label(name), {})
            found[name] = found.get(name, 0) + rows
    named = {
        min(found, key=lambda name: (-found[name], name)): sum(found.values()) for found in spellings.values()
    }
    return dict(sorted(named.items()))


def folded_label(name: str) -> str:
    """Return a label's value without outer spaces and in lower case, for comparison."""
    return name.strip().casefold()


def _zero_first(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return two classes so that the second, which counts as 1, is "yes" and not "no", if words say so."""
    if len(classes) != 2:
        return classes
    first, second = map(_meaning, classes)
    return classes if first <= second else classes[::-1]


def _meaning(name: str) -> int:
    """Return 1 for a word that means yes, -1 for one that means no, and 0 for any other."""
    plain = "".join(
        c for c in unicodedata.normalize("NFKD", folded_label(name)) if not unicodedata.combining(c)
    )
    return (plain in _POSITIVE.split()) - (plain in _NEGATIVE.split())
