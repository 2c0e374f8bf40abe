"""Tables of silos that are elsewhere, as a study plans over them: summaries, and never a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedilc.algorithms.loss_registry import has_classes
from fedilc.data.checks.notes import grouped
from fedilc.data.tables.label_rule import LabelRule, folded_label
from fedilc.data.tables.preprocessing import Preprocessing, fit_preprocessing
from fedilc.data.tables.silo_summary import SiloSummary
from fedilc.data.tables.table_notes import table_notes
from fedilc.data.tables.table_settings import Scaling, TableSettings
from fedilc.errors import ConfigError
from fedilc.runtimes.remote.survey import label_rule
from fedilc.storage.files import json_digest
from fedilc.studies.study.data import StudyData, different_scalings

NO_POOLS = (
    "models of pooled data (pooled, pooled logistic, pooled trees) are left out, because no table leaves its "
    "site"
)


@dataclass(frozen=True)
class RemoteTables(StudyData):
    """Tables of silos that join a coordinator.

    `labels` has the classes of each silo as its summary counts them, in no order.
    """

    table: TableSettings = field(kw_only=True)
    rule: LabelRule = field(kw_only=True)
    summaries: Mapping[str, SiloSummary] = field(kw_only=True, repr=False)
    _fitted: dict[tuple[str, ...], Preprocessing] = field(default_factory=dict, repr=False, compare=False)

    is_table = True
    pools = False

    @classmethod
    def of(
        cls,
        name: str,
        table: TableSettings,
        summaries: Mapping[str, SiloSummary],
        settings: Mapping[str, Any],
    ) -> RemoteTables:
        """Return the data of silos from their summaries, in the order in which the study names them."""
        rule = label_rule(table, list(summaries.values()))
        if not has_classes(rule.loss):
            raise ConfigError(
                f"the label {table.label!r} is a quantity; a study over silos is for labels of classes: name "
                "a comparison such as 'cost>1000', or bring the tables together for `fedilc study`"
            )
        labels = {silo: _labels(rule, summary) for silo, summary in summaries.items()}
        found = cls(
            name,
            rule.loss,
            rule.outputs,
            labels,
            settings=settings,
            table=table,
            rule=rule,
            summaries=summaries,
        )
        notes = grouped(table_notes(list(summaries.values()), found.fit(list(summaries))))
        return replace(found, notes=(*notes, NO_POOLS))

    @property
    def nbytes(self) -> int:
        """Return 0: no row is here."""
        return 0

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """Return, by silo, a digest of its summary and of how its table is read."""
        how = self.table.model_dump(mode="json")
        return {
            silo: json_digest({"table": how, "summary": summary.model_dump(mode="json")})[:16]
            for silo, summary in self.summaries.items()
        }

    def fit(self, training: Sequence[str], scaling: Scaling = "moments") -> Preprocessing:
        """Return the preprocessing that follows from the summaries of some silos."""
        key = (scaling, *training)
        if key not in self._fitted:
            settings = self.table.model_copy(update={"scaling": scaling})
            found = [self.summaries[silo] for silo in training]
            self._fitted[key] = fit_preprocessing(found, self.rule, settings)
        return self._fitted[key]

    def scalings(self, offered: Sequence[Scaling]) -> tuple[Scaling, ...]:
        """Return which scalings may be chosen: those offered, or the one that the settings name."""
        return different_scalings(self.table, list(self.summaries), self.fit, offered)

    def inputs(
        self, training: Sequence[str], _silo: str, scaling: Scaling = "moments", _rows: Any = None
    ) -> Tensor:
        """Return inputs of zeros: their shape is all that is known here."""
        return torch.zeros(2, *self.fit(training, scaling).inputs)

    def inputs_by_rows(self, silo: str, _rows: NDArray[np.intp]) -> Tensor:
        """Return inputs of zeros: their shape is all that is known here."""
        return self.inputs([silo], silo)

    def require_subgroup(self, text: str) -> None:
        """Raise if sites would divide their examples by a column in different ways."""
        column = LabelRule.parse(text)
        parts = [part for one in self.summaries.values() if (part := one.column(text)) is not None]
        if column.comparison is None and not parts:
            raise ConfigError(
                f"`subgroups` names the column {text!r}, of which the silos' summaries say nothing; give a "
                f"comparison, such as '{text}>=65', or a column that is an input"
            )
        if column.comparison is None and any(part.kind == "number" and part.levels is None for part in parts):
            raise ConfigError(
                f"`subgroups` names the column {text!r}, whose numbers each site would divide elsewhere; "
                f"give a comparison, such as '{text}>=65'"
            )

    def without(self, silos: Sequence[str]) -> RemoteTables:
        """Return the data without some silos, as if these had never joined."""
        kept = {silo: summary for silo, summary in self.summaries.items() if silo not in silos}
        return RemoteTables.of(self.name, self.table, kept, self.settings)


def _labels(rule: LabelRule, summary: SiloSummary) -> NDArray[Any]:
    """Return as many labels of each class as a summary counts; rows of values that it does not count differ.

    What is left of the rows is of the classes that are not counted.
    """
    names = rule.classes
    counts = dict.fromkeys(range(len(names)), 0)
    for value, rows in summary.labels.items():
        number = int(rule.encode(pl.Series(rule.column, [value]))[0]) if rule.comparison is None else None
        if number is None:
            number = [folded_label(name) for name in names].index(folded_label(value))
        counts[number] += rows
    left = max(0, summary.rows - sum(counts.values()))
    unknown = [number for number, rows in counts.items() if not rows]
    for place, number in enumerate(unknown):
        counts[number] = left // len(unknown) + (place < left % len(unknown))
    return np.repeat(np.arange(len(names)), [counts[number] for number in range(len(names))])
